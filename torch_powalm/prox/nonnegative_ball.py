"""The nonnegative part of a ball."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torch_powalm.functional import norm
from torch_powalm.prox.argument_checks import check_positive
from torch_powalm.prox.normal_cones import indicator, shorten_by_orthant, shorten_by_ray
from torch_powalm.prox.rounding import rounding


@dataclass(frozen=True)
class NonNegativeBall:
    """Indicator of {x : x ≥ 0, ‖x‖ ≤ radius}, with the Euclidean norm of all entries.

    Args:
        radius: > 0.
    """

    is_indicator: ClassVar[bool] = True

    radius: float

    def __post_init__(self) -> None:
        check_positive("radius", self.radius)

    def value(self, x: Tensor) -> float:
        """0 if x ≥ 0 and ‖x‖ ≤ radius, else inf."""
        return indicator(x.amin().item() >= 0 and norm(x) <= self.radius + self._slack(x))

    def prox(self, v: Tensor, step: float) -> Tensor:
        """Projection onto the cone, then onto the ball (Bauschke, Bui, Wang 2018)."""
        x = v.clamp(min=0.0)
        x_norm = norm(x)
        return x.mul_(self.radius / x_norm) if x_norm > self.radius else x

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Normal cone: that of x ≥ 0, plus t x with t ≥ 0 on the sphere.

        The minimum over s and t of Σ (v_i + s_i + t x_i)² separates. Where x_i = 0, the ray adds
        nothing and s_i ≤ 0 leaves min(v_i, 0). Where x_i > 0, s_i = 0 and the best t is
        max(0, −⟨v, x⟩/‖x‖²), which does not depend on the entries with x_i = 0.
        """
        x_norm, slack = norm(x), self._slack(x)
        if not (x_norm <= self.radius + slack and x.amin().item() >= 0):
            return math.inf
        residual = shorten_by_orthant(v, x)
        if x_norm >= self.radius - slack:
            residual = shorten_by_ray(residual, x, x_norm)
        return norm(residual)

    def _slack(self, x: Tensor) -> float:
        return rounding(x, x.numel()) * self.radius
