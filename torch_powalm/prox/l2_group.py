"""The sum of the norms of groups."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torch_powalm.prox.checks import check_positive
from torch_powalm.prox.norms import length, lengths


@dataclass(frozen=True)
class L2Group:
    """g(x) = weight Σ ‖x_j‖ over the groups x_j, the slices of x along one dimension.

    Args:
        weight: > 0.
        dim: the dimension along which the entries of a group lie.
    """

    is_indicator: ClassVar[bool] = False

    weight: float
    dim: int

    def __post_init__(self) -> None:
        check_positive("weight", self.weight)

    def value(self, x: Tensor) -> float:
        """The sum weight Σ ‖x_j‖."""
        return self.weight * float(lengths(x, self.dim).sum().item())

    def prox(self, v: Tensor, step: float) -> Tensor:
        """v_j max(0, 1 − weight · step/‖v_j‖)."""
        return v * (1.0 - self.weight * step / lengths(v, self.dim)).clamp_(min=0.0)

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Subdifferential: s_j = weight · x_j/‖x_j‖, or ‖s_j‖ ≤ weight where x_j = 0."""
        norms = lengths(x, self.dim)
        smooth = lengths(torch.add(v, x / norms, alpha=self.weight), self.dim)
        kink = (lengths(v, self.dim) - self.weight).clamp(min=0.0)
        return length(torch.where(norms == 0, kink, smooth))
