"""The nonnegative orthant."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torch_powalm.functional import norm
from torch_powalm.prox.normal_cones import indicator, shorten_by_orthant
from torch_powalm.prox.proximable import Bounds


@dataclass(frozen=True)
class NonNegative:
    """Indicator of {x : x ≥ 0}."""

    is_indicator: ClassVar[bool] = True
    is_elementwise: ClassVar[bool] = True
    bounds: ClassVar[Bounds] = (0.0, math.inf)

    def value(self, x: Tensor) -> float:
        """0 if x ≥ 0, else inf."""
        return indicator(x.amin().item() >= 0)

    def prox(self, v: Tensor, step: float | Tensor) -> Tensor:
        """max(v, 0)."""
        return v.clamp(min=0.0)

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Normal cone: s_i ≤ 0 where x_i = 0, s_i = 0 elsewhere."""
        if self.value(x) == math.inf:
            return math.inf
        return norm(shorten_by_orthant(v, x))
