"""A Euclidean ball."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torch_powalm.functional import norm
from torch_powalm.prox.argument_checks import check_finite, check_positive
from torch_powalm.prox.broadcasting import as_tensor, expand_like
from torch_powalm.prox.normal_cones import indicator, shorten_by_ray
from torch_powalm.prox.rounding import rounding


@dataclass(frozen=True, eq=False)
class Ball:
    """Indicator of {x : ‖x − center‖ ≤ radius}, with the Euclidean norm of all entries.

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
        return indicator(norm(x - expand_like(self.center, x)) <= self.radius + self._slack(x))

    def prox(self, v: Tensor, step: float) -> Tensor:
        """Projection: center + (v − center) min(1, radius/‖v − center‖)."""
        center = expand_like(self.center, v)
        offset: Tensor = v - center
        offset_norm = norm(offset)
        if not offset_norm > self.radius:
            return v.clone()
        return offset.mul_(self.radius / offset_norm).add_(center)

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Normal cone: t(x − center) with t ≥ 0 on the sphere, 0 inside."""
        offset = x - expand_like(self.center, x)
        offset_norm, slack = norm(offset), self._slack(x)
        if not offset_norm <= self.radius + slack:
            return math.inf
        if offset_norm < self.radius - slack:
            return norm(v)
        return norm(shorten_by_ray(v, offset, offset_norm))

    def _slack(self, x: Tensor) -> float:
        # The rounding of x = center + offset is relative to x, whose norm may be far larger.
        return rounding(x, x.numel()) * (self.radius + norm(x))
