"""Block, a named constraint, and Tally, its running sums over batches.

A tally is a pair of sums that can be added over micro-batches, ranks and epochs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torch_powalm.functional import norm, violation
from torch_powalm.result import Violation

ConstraintFn = Callable[[], Tensor]
BatchValue = Tensor | tuple[Tensor, Tensor]
_FULL = frozenset((torch.float32, torch.float64))


@dataclass(frozen=True)
class Block:
    """One named constraint: A(x) = 0, or B(x) ≤ 0 when `inequality` is true."""

    name: str
    inequality: bool
    fn: ConstraintFn | None
    size: int | None
    from_statistics: Callable[[Tensor], Tensor] | None

    def flat(self, value: object, size: int | None, noun: str = "") -> Tensor:
        """Check the value and return it as a flat vector of at least single precision."""
        # Fast path: with many blocks, the checks below are measurable.
        if isinstance(value, Tensor) and value.dtype in _FULL and value.shape == (size,) and size:
            return value
        what = f"constraint {self.name!r}{noun}"
        if not isinstance(value, Tensor):
            raise TypeError(f"{what} must be a tensor, got {type(value).__name__}")
        if not value.is_floating_point():
            raise TypeError(f"{what} must be a floating-point tensor, got {value.dtype}")
        if value.numel() == 0:
            raise ValueError(f"{what} must have at least one entry, got shape {tuple(value.shape)}")
        if size is not None and value.numel() != size:
            raise ValueError(f"{what} must have {size} entries, got {value.numel()}")
        flat = value if value.dim() == 1 else value.reshape(-1)
        return flat.float() if flat.element_size() < 4 else flat

    def violation(self, value: Tensor) -> Violation:
        """Return the largest entry and the norm of |A(x)| or max(B(x), 0)."""
        excess = violation(value, self.inequality)
        return Violation(float(excess.abs().max()), norm(excess))

    def __str__(self) -> str:
        kind = "inequality" if self.inequality else "equality"
        if self.fn is not None:
            return f"{self.name}: {kind}, function of the parameters"
        source = "statistics of the batch" if self.from_statistics else "the batch"
        return f"{self.name}: {kind}, size {self.size}, from {source}"


class Tally(NamedTuple):
    """Sums of a batch block: its weighted values and their weights, or its additive statistics."""

    total: Tensor
    weight: Tensor | float

    def plus(self, other: "Tally") -> "Tally":
        """Add two tallies."""
        self.check_size(other)
        return Tally(self.total + other.total, self.weight + other.weight)

    def check_size(self, other: "Tally") -> None:
        """Raise if the other tally has statistics of another shape."""
        if self.total.shape != other.total.shape:
            raise ValueError(
                f"statistics must have {len(self.total)} entries as before, got {len(other.total)}"
            )

    def divided(self, parts: int) -> "Tally":
        """Return the average of equal parts."""
        return self if parts == 1 else Tally(self.total / parts, self.weight / parts)

    def snapshot(self) -> "Tally":
        """Return a detached copy."""
        weight = self.weight if isinstance(self.weight, float) else self.weight.clone()
        return Tally(self.total.detach().clone(), weight)

    def value(self, block: Block) -> Tensor:
        """Return the constraint: a function of the statistics, or total / weight (0 if 0 / 0)."""
        if block.from_statistics is not None:
            return block.flat(block.from_statistics(self.total), block.size, " from its statistics")
        if isinstance(self.weight, float):
            return self.total if self.weight == 1.0 else self.total / self.weight
        return self.total / torch.where(self.weight > 0, self.weight, 1.0)


def tally(block: Block, value: BatchValue, samples: float) -> Tally:
    """Read the value of a block in one batch: a tensor, (tensor, count), or statistics."""
    if block.from_statistics is not None:
        return Tally(block.flat(value, None, "'s statistics"), 1.0)
    if not isinstance(value, tuple):
        total = block.flat(value, block.size)
        return Tally(total if samples == 1.0 else total * samples, float(samples))
    if len(value) != 2:
        raise ValueError(
            f"constraint {block.name!r} must be a value or (value, count), got {len(value)} items"
        )
    total = block.flat(value[0], block.size)
    count = torch.as_tensor(value[1], dtype=total.dtype, device=total.device).detach().reshape(-1)
    if len(count) != len(total):
        raise ValueError(
            f"count of {block.name!r} must have {len(total)} entries, got {len(count)}"
        )
    if not bool(((count >= 0) & count.isfinite()).all()):
        raise ValueError(
            f"count of {block.name!r} must be nonnegative and finite, got {count.tolist()}"
        )
    return Tally(torch.where(count > 0, total, 0.0) * count, count)


def check_samples(samples: float) -> None:
    """Raise unless the weight of a batch is a positive number."""
    if not 0 < samples < math.inf:
        raise ValueError(f"samples must be positive and finite, got {samples!r}")
