"""Matrices with bounded singular values."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torch_powalm.functional import norm
from torch_powalm.prox.argument_checks import check_matrix, check_positive
from torch_powalm.prox.normal_cones import indicator
from torch_powalm.prox.rounding import rounding


@dataclass(frozen=True)
class SpectralNormBall:
    """Indicator of {x : σ_max(x) ≤ radius}, the matrices x with ‖x z‖ ≤ radius ‖z‖ for all z.

    Args:
        radius: > 0.
    """

    is_indicator: ClassVar[bool] = True

    radius: float

    def __post_init__(self) -> None:
        check_positive("radius", self.radius)

    def value(self, x: Tensor) -> float:
        """0 if σ_max(x) ≤ radius, else inf."""
        check_matrix("x", x)
        if not x.isfinite().all():
            return math.inf
        return indicator(torch.linalg.svdvals(x)[0].item() <= self.radius * (1 + _slack(x)))

    def prox(self, v: Tensor, step: float) -> Tensor:
        """Projection: U min(Σ, radius) Vᵀ."""
        check_matrix("v", v)
        if not v.isfinite().all():  # the SVD would raise
            return torch.full_like(v, math.nan)
        U, sigma, Vt = torch.linalg.svd(v, full_matrices=False)
        if not sigma[0] > self.radius:
            return v.clone()
        x: Tensor = U * sigma.clamp_(max=self.radius) @ Vt
        return x

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Normal cone: U S Vᵀ with S positive semidefinite.

        U, V hold the singular vectors of x with σ_i = radius. The S nearest to −UᵀvV is the
        positive semidefinite part of its symmetric part.
        """
        if self.value(x) == math.inf:
            return math.inf
        if not v.isfinite().all():
            return math.nan
        U, sigma, Vt = torch.linalg.svd(x, full_matrices=False)
        longest = sigma >= self.radius * (1 - _slack(x))
        U, Vt = U[:, longest], Vt[longest]
        M = -U.T @ v @ Vt.T
        eigenvalues, Q = torch.linalg.eigh((M + M.T) / 2)
        return norm(v + U @ (Q * eigenvalues.clamp(min=0.0) @ Q.T) @ Vt)


def _slack(x: Tensor) -> float:
    return rounding(x, max(x.shape))
