"""The sum of absolute values."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from torch_powalm.functional import norm
from torch_powalm.prox.argument_checks import check_positive


@dataclass(frozen=True)
class L1:
    """g(x) = weight Σ |x_i|.

    Args:
        weight: > 0.
    """

    is_indicator: ClassVar[bool] = False
    is_elementwise: ClassVar[bool] = True

    weight: float

    def __post_init__(self) -> None:
        check_positive("weight", self.weight)

    def value(self, x: Tensor) -> float:
        """The sum weight Σ |x_i|."""
        return self.weight * float(x.abs().sum().item())

    def prox(self, v: Tensor, step: float | Tensor) -> Tensor:
        """Soft threshold: v minus its projection onto |v_i| ≤ weight · step."""
        return _shrink(v, self.weight * step)

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Subdifferential: s_i = weight · sign(x_i), or |s_i| ≤ weight where x_i = 0."""
        smooth = torch.add(v, x / x.abs(), alpha=self.weight)
        return norm(torch.where(x == 0, _shrink(v, self.weight), smooth))


def _shrink(v: Tensor, threshold: Any) -> Tensor:
    return v - v.clamp(-threshold, threshold)
