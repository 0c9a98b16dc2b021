"""A system of linear equations."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from torch_powalm.functional import norm
from torch_powalm.prox.argument_checks import check_finite, check_matrix
from torch_powalm.prox.normal_cones import indicator
from torch_powalm.prox.rounding import rounding


@dataclass(frozen=True, eq=False)
class Affine:
    """Indicator of {x : matrix · x = rhs}, x flattened to a vector.

    The rows of the matrix may be linearly dependent as long as the system has a solution.

    Args:
        matrix: m × n in the dtype of x, with small m; decomposed once.
        rhs: m entries.
    """

    is_indicator: ClassVar[bool] = True

    matrix: Tensor
    rhs: Tensor
    # the same set written as basisᵀx = offset, with orthonormal columns
    _basis: Tensor = field(init=False, repr=False)
    _offset: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_matrix("matrix", self.matrix)
        if not self.matrix.is_floating_point():
            raise TypeError(f"matrix must have a floating-point dtype, got {self.matrix.dtype}")
        check_finite("matrix", self.matrix)
        check_finite("rhs", self.rhs)
        if self.rhs.shape != self.matrix.shape[:1]:
            raise ValueError(
                f"rhs must have shape ({self.matrix.shape[0]},), got {tuple(self.rhs.shape)}"
            )
        M, b = (t.detach().to("cpu", torch.float64) for t in (self.matrix, self.rhs))
        U, sigma, Vt = torch.linalg.svd(M, full_matrices=False)
        slack = rounding(self.matrix, max(M.shape))
        rank = int((sigma > slack * sigma[:1]).sum())
        U, sigma, Vt = U[:, :rank], sigma[:rank], Vt[:rank]
        residual = norm(b - U @ (U.T @ b))
        if residual > slack * norm(b):
            raise ValueError(f"rhs must be in the range of matrix, got a residual of {residual!r}")
        object.__setattr__(self, "_basis", Vt.T.to(self.matrix))
        object.__setattr__(self, "_offset", (U.T @ b / sigma).to(self.matrix))

    def value(self, x: Tensor) -> float:
        """0 if matrix · x = rhs, else inf."""
        # The absolute part of the slack is needed for rhs = 0: the prox of a vector in the range of
        # matrixᵀ is then a rounded zero. It does no harm, since the set has no faces.
        slack = rounding(x, x.numel()) * (1.0 + norm(x))
        return indicator(norm(self._error(x.reshape(-1))) <= slack)

    def prox(self, v: Tensor, step: float) -> Tensor:
        """Projection v − basis (basisᵀv − offset)."""
        x, basis = v.reshape(-1), self._basis.to(v)
        for _ in range(2):  # the first pass leaves an error relative to v, the second relative to x
            x = torch.addmv(x, basis, self._error(x), alpha=-1)
        return x.reshape(v.shape)

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Normal cone: the range of matrixᵀ."""
        if self.value(x) == math.inf:
            return math.inf
        v, basis = v.reshape(-1), self._basis.to(v)
        return norm(torch.addmv(v, basis, basis.T @ v, alpha=-1))

    def _error(self, x: Tensor) -> Tensor:
        n = self.matrix.shape[1]
        if x.numel() != n:
            raise ValueError(f"x has {x.numel()} entries, matrix has {n} columns")
        return torch.addmv(self._offset.to(x), self._basis.to(x).T, x, beta=-1)
