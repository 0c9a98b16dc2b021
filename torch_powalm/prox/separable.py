"""Different convex terms on different rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from torch_powalm.functional import norm
from torch_powalm.prox.proximable import Elementwise, Proximable


@dataclass(frozen=True, eq=False)
class Separable:
    """g(x) = Σ g_j(x[rows_j]): terms on disjoint blocks of rows, and 0 on all other rows.

    Example:
        Separable([(slice(0, 3), Box(0.0, 1.0)), (slice(5, None), L1(0.1))])

    Args:
        parts: pairs of a slice of the first dimension, 0 ≤ start < stop, and the term of its rows;
            a stop of None extends to the end.
    """

    parts: Sequence[tuple[slice, Proximable]]
    _free: tuple[slice, ...] = field(init=False, repr=False)
    _size: int = field(init=False, repr=False)  # rows that x must have
    _is_indicator: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        for part in self.parts:
            _check_part(part)
        blocks = sorted((rows for rows, _ in self.parts), key=lambda rows: rows.start or 0)
        free, end = [], 0
        for j, rows in enumerate(blocks):
            start = rows.start or 0
            if j > 0 and (blocks[j - 1].stop is None or start < end):
                raise ValueError(f"parts must be disjoint, got {blocks[j - 1]!r} and {rows!r}")
            free.append(slice(end, start))
            end = start if rows.stop is None else rows.stop
        if not blocks or blocks[-1].stop is not None:
            free.append(slice(end, None))
        object.__setattr__(self, "_free", tuple(rows for rows in free if rows.start != rows.stop))
        object.__setattr__(self, "_size", end)
        object.__setattr__(self, "_is_indicator", all(g.is_indicator for _, g in self.parts))

    @property
    def is_indicator(self) -> bool:
        """Whether every term is an indicator."""
        return self._is_indicator

    @property
    def is_elementwise(self) -> bool:
        """Whether every term is a sum over entries."""
        return all(isinstance(g, Elementwise) and g.is_elementwise for _, g in self.parts)

    def value(self, x: Tensor) -> float:
        """The sum Σ g_j(x[rows_j])."""
        self._check_rows(x)
        return math.fsum(g.value(x[rows]) for rows, g in self.parts)

    def prox(self, v: Tensor, step: float | Tensor) -> Tensor:
        """The prox of each term on its rows."""
        self._check_rows(v)
        x = v.clone()
        for rows, g in self.parts:
            own: Any = step[rows] if isinstance(step, Tensor) else step
            x[rows] = g.prox(v[rows], own)
        return x

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Subdifferential: the product of those of the terms, and {0} on all other rows."""
        self._check_rows(x)
        distances = [g.distance(x[rows], v[rows]) for rows, g in self.parts]
        return math.hypot(*distances, *(norm(v[rows]) for rows in self._free))

    def _check_rows(self, x: Tensor) -> None:
        if x.shape[0] < self._size:
            raise ValueError(f"x has {x.shape[0]} rows, parts need {self._size}")


def _check_part(part: Any) -> None:
    match part:
        case (slice() as rows, Proximable() as g) if not isinstance(g, type):
            start, stop = rows.start or 0, rows.stop
            if rows.step is not None or start < 0 or (stop is not None and stop <= start):
                rule = "slices with 0 <= start < stop and no step"
                raise ValueError(f"parts must have {rule}, got {rows!r}")
        case _:
            raise TypeError(f"parts must be pairs of a slice and a term, got {part!r}")
