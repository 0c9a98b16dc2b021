"""Lower and upper bounds."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torch_powalm.functional import norm
from torch_powalm.prox.argument_checks import first_entry
from torch_powalm.prox.broadcasting import as_tensor, expand_like
from torch_powalm.prox.normal_cones import indicator
from torch_powalm.prox.proximable import Bounds
from torch_powalm.prox.rounding import rounding


@dataclass(frozen=True, eq=False)
class Box:
    """Indicator of {x : lower ≤ x ≤ upper}.

    Args:
        lower: float, or tensor that broadcasts to x; −inf leaves a side open.
        upper: of the same kind, lower ≤ upper; inf leaves a side open.
    """

    is_indicator: ClassVar[bool] = True
    is_elementwise: ClassVar[bool] = True

    lower: float | Tensor
    upper: float | Tensor

    def __post_init__(self) -> None:
        lower, upper = as_tensor(self.lower), as_tensor(self.upper)
        if (wrong := ~(lower < math.inf)).any():
            raise ValueError(f"lower must be less than inf, got {first_entry(lower, wrong)!r}")
        if (wrong := ~(upper > -math.inf)).any():
            raise ValueError(f"upper must be greater than -inf, got {first_entry(upper, wrong)!r}")
        if (wrong := lower > upper).any():
            pair = f"{first_entry(lower, wrong)!r} > {first_entry(upper, wrong)!r}"
            raise ValueError(f"lower must be at most upper, got {pair}")
        if isinstance(self.lower, Tensor) != isinstance(self.upper, Tensor):
            # clamp takes two floats or two tensors.
            object.__setattr__(self, "lower", lower)
            object.__setattr__(self, "upper", upper)

    @property
    def bounds(self) -> Bounds:
        """Both bounds."""
        return self.lower, self.upper

    def value(self, x: Tensor) -> float:
        """0 if lower ≤ x ≤ upper, else inf."""
        inside = self.prox(x, 1.0)
        if torch.equal(inside, x):
            return 0.0
        return indicator(((x - inside).abs() <= rounding(x, 1) * x.abs()).all().item())

    def prox(self, v: Tensor, step: float | Tensor) -> Tensor:
        """min(max(v, lower), upper)."""
        return torch.clamp(v, expand_like(self.lower, v), expand_like(self.upper, v))

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Normal cone: s_i ≤ 0 at lower, s_i ≥ 0 at upper, any s_i where the two are equal."""
        if self.value(x) == math.inf:
            return math.inf
        residual = torch.where(x <= expand_like(self.lower, x), v.clamp(max=0.0), v)
        return norm(torch.where(x >= expand_like(self.upper, x), residual.clamp(min=0.0), residual))
