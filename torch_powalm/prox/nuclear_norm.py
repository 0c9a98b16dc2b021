"""The sum of singular values."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torch_powalm.functional import norm
from torch_powalm.prox.argument_checks import check_matrix, check_positive
from torch_powalm.prox.rounding import rounding


@dataclass(frozen=True)
class NuclearNorm:
    """g(x) = weight Σ σ_i(x), the sum of the singular values of a matrix x.

    Args:
        weight: > 0.
    """

    is_indicator: ClassVar[bool] = False

    weight: float

    def __post_init__(self) -> None:
        check_positive("weight", self.weight)

    def value(self, x: Tensor) -> float:
        """The sum weight Σ σ_i(x)."""
        check_matrix("x", x)
        if not x.isfinite().all():
            return math.nan
        return self.weight * float(torch.linalg.svdvals(x).sum().item())

    def prox(self, v: Tensor, step: float) -> Tensor:
        """U max(Σ − weight · step, 0) Vᵀ (Cai, Candès, Shen 2010, Theorem 2.1)."""
        check_matrix("v", v)
        if not v.isfinite().all():  # the SVD would raise
            return torch.full_like(v, math.nan)
        U, sigma, Vt = torch.linalg.svd(v, full_matrices=False)
        x: Tensor = U * (sigma - self.weight * step).clamp_(min=0.0) @ Vt
        return x

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Subdifferential: weight (UVᵀ + W) with UᵀW = 0, WV = 0, ‖W‖ ≤ 1 in the spectral norm.

        U, V hold the singular vectors of x with σ_i > 0 (Watson 1992). On the part of v in the
        range of U or V only weight UVᵀ acts; W lowers the singular values of the rest by at most
        weight.
        """
        check_matrix("x", x)
        if not (x.isfinite().all() and v.isfinite().all()):
            return math.nan
        U, sigma, Vt = torch.linalg.svd(x, full_matrices=False)
        positive = sigma > rounding(x, max(x.shape)) * sigma[:1]
        U, Vt = U * positive, Vt * positive[:, None]
        rest = v - U @ (U.T @ v)
        rest = rest - (rest @ Vt.T) @ Vt
        kept = (torch.linalg.svdvals(rest) - self.weight).clamp(min=0.0)
        return math.hypot(norm(v - rest + self.weight * (U @ Vt)), norm(kept))
