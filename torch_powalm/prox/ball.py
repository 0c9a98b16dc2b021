"""A Euclidean ball."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torch_powalm.prox.checks import as_tensor, check_finite, check_positive
from torch_powalm.prox.faces import indicator, like, shorten_by_ray
from torch_powalm.prox.norms import length, rounding


@dataclass(frozen=True, eq=False)
class Ball:
    """Indicator of {x : ‖x − center‖ ≤ radius}, the Euclidean norm of all entries together.

    Args:
        radius: > 0.
        center: float, or tensor that broadcasts to x.
    """

    is_indicator: ClassVar[bool] = True

    radius: float
    center: float | Tensor = 0.0

    def __post_init__(self) -> None:
        check_positive("radius", self.radius)
        check_finite("center", as_tensor(self.center))

    def value(self, x: Tensor) -> float:
        """0 if ‖x − center‖ ≤ radius, else inf."""
        return indicator(length(x - like(self.center, x)) <= self.radius + self._slack(x))

    def prox(self, v: Tensor, step: float) -> Tensor:
        """Scaled offset: center + (v − center) min(1, radius/‖v − center‖)."""
        center = like(self.center, v)
        offset = v - center
        norm = length(offset)
        return offset.mul_(self.radius / norm).add_(center) if norm > self.radius else v.clone()

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Normal cone: t(x − center) with t ≥ 0 on the sphere, 0 inside."""
        offset = x - like(self.center, x)
        norm, slack = length(offset), self._slack(x)
        if not norm <= self.radius + slack:
            return math.inf
        return length(v if norm < self.radius - slack else shorten_by_ray(v, offset, norm))

    def _slack(self, x: Tensor) -> float:
        # x = center + offset is rounded relative to x, which may be far longer than the offset
        return rounding(x, x.numel()) * (self.radius + length(x))
