"""The zero function, for problems without a convex term."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torch_powalm.functional import norm
from torch_powalm.prox.proximable import Bounds


@dataclass(frozen=True)
class Zero:
    """The zero function, g(x) = 0."""

    is_indicator: ClassVar[bool] = True
    is_elementwise: ClassVar[bool] = True
    bounds: ClassVar[Bounds] = (-math.inf, math.inf)

    def value(self, x: Tensor) -> float:
        """0."""
        return 0.0

    def prox(self, v: Tensor, step: float | Tensor) -> Tensor:
        """A copy of v."""
        return v.clone()

    def distance(self, x: Tensor, v: Tensor) -> float:
        """‖v‖."""
        return norm(v)
