"""The sum of the norms of groups of entries."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torch_powalm.functional import norm
from torch_powalm.prox.argument_checks import check_positive


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
        return self.weight * float(self._norms(x).sum().item())

    def prox(self, v: Tensor, step: float) -> Tensor:
        """v_j max(0, 1 − weight · step/‖v_j‖)."""
        return v * (1.0 - self.weight * step / self._norms(v)).clamp_(min=0.0)

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Subdifferential: s_j = weight · x_j/‖x_j‖, or ‖s_j‖ ≤ weight where x_j = 0."""
        norms = self._norms(x)
        smooth = self._norms(torch.add(v, x / norms, alpha=self.weight))
        kink = (self._norms(v) - self.weight).clamp(min=0.0)
        return norm(torch.where(norms == 0, kink, smooth))

    def _norms(self, x: Tensor) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(x, dim=self.dim, keepdim=True)
        return norms
