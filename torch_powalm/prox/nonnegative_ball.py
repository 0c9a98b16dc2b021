"""The nonnegative part of a ball."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torch_powalm.prox.checks import check_positive
from torch_powalm.prox.faces import indicator, shorten_by_orthant, shorten_by_ray
from torch_powalm.prox.norms import length, rounding


@dataclass(frozen=True)
class NonNegativeBall:
    """Indicator of {x : x ≥ 0, ‖x‖ ≤ radius}, the Euclidean norm of all entries together.

    Args:
        radius: > 0.
    """

    is_indicator: ClassVar[bool] = True

    radius: float

    def __post_init__(self) -> None:
        check_positive("radius", self.radius)

    def value(self, x: Tensor) -> float:
        """0 if x ≥ 0 and ‖x‖ ≤ radius, else inf."""
        return indicator(x.amin().item() >= 0 and length(x) <= self.radius + self._slack(x))

    def prox(self, v: Tensor, step: float) -> Tensor:
        """Projection onto the cone, then onto the ball (Bauschke, Bui, Wang 2018)."""
        x = v.clamp(min=0.0)
        norm = length(x)
        return x.mul_(self.radius / norm) if norm > self.radius else x

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Normal cone: that of x ≥ 0, plus t x with t ≥ 0 on the sphere.

        The minimum over s and t of Σ (v_i + s_i + t x_i)² falls apart: where x_i = 0 the ray adds
        nothing and s_i ≤ 0 leaves min(v_i, 0); where x_i > 0 there is no s_i, and the best t is
        max(0, −⟨v, x⟩/‖x‖²), in which the entries with x_i = 0 do not appear.
        """
        norm, slack = length(x), self._slack(x)
        if not (norm <= self.radius + slack and x.amin().item() >= 0):
            return math.inf
        residual = shorten_by_orthant(v, x)
        return length(residual if norm < self.radius - slack else shorten_by_ray(residual, x, norm))

    def _slack(self, x: Tensor) -> float:
        return rounding(x, x.numel()) * self.radius
