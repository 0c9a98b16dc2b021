"""The paper's three problems with hand-written oracles: GEVP, nonconvex QP, clustering."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_powalm import Problem, prox


@dataclass(frozen=True)
class Quadratic:
    """½ xᵀQx + qᵀx, one product for value and gradient."""

    Q: Tensor
    q: Tensor

    def value_and_grad(self, x: Tensor) -> tuple[float, Tensor]:
        """Value and Qx + q."""
        Qx = self.Q @ x
        return 0.5 * torch.dot(x, Qx).item() + torch.dot(self.q, x).item(), Qx + self.q


@dataclass(frozen=True)
class Linear:
    """Cx − b."""

    C: Tensor
    b: Tensor

    def values(self, x: Tensor) -> Tensor:
        """Cx − b."""
        return torch.addmv(self.b, self.C, x, beta=-1)

    def vjp(self, x: Tensor, w: Tensor) -> Tensor:
        """Cᵀw."""
        return torch.mv(self.C.T, w)


class Sphere:
    """xᵀx − 1."""

    def values(self, x: Tensor) -> Tensor:
        """One entry."""
        return (torch.dot(x, x) - 1).reshape(1)

    def vjp(self, x: Tensor, w: Tensor) -> Tensor:
        """2wx."""
        return x * (2 * w)


@dataclass(frozen=True)
class Spread:
    """⟨X, DX⟩, one product for value and gradient.

    Args:
        doubled: 2D, symmetric.
    """

    doubled: Tensor

    def value_and_grad(self, X: Tensor) -> tuple[float, Tensor]:
        """Value and 2DX, as (Xᵀ2D)ᵀ: for n = 1000 this order takes half the time of the other."""
        grad = (X.T @ self.doubled).T.contiguous()
        return 0.5 * torch.dot(X.reshape(-1), grad.reshape(-1)).item(), grad


class RowSums:
    """XXᵀ1 − 1, the row sums of the Gram matrix."""

    def values(self, X: Tensor) -> Tensor:
        """One entry per row."""
        return X @ X.sum(0) - 1

    def vjp(self, X: Tensor, w: Tensor) -> Tensor:
        """w(Xᵀ1)ᵀ + 1(Xᵀw)ᵀ."""
        return torch.addr(X.T @ w, w, X.sum(0))


def gevp_matrix(seed: int, n: int) -> tuple[Tensor, torch.Generator]:
    """The symmetrized normal matrix C of a GEVP, deviation 0.1, and the generator after it."""
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n!r}")
    generator = torch.Generator().manual_seed(seed)
    C = 0.1 * torch.randn(n, n, dtype=torch.float64, generator=generator)
    return (C + C.T) / 2, generator


def gevp(seed: int, n: int = 500, factor: float = 0.5) -> tuple[Problem, Tensor]:
    """Minimize factor · xᵀCx s.t. ‖x‖ = 1."""
    C, generator = gevp_matrix(seed, n)
    f = Quadratic(2 * factor * C, torch.zeros(n, dtype=torch.float64))
    x_1 = torch.rand(n, dtype=torch.float64, generator=generator)
    return Problem(f, equality=Sphere()), x_1


def qp(seed: int, n: int = 100, m: int = 20, **generator: Any) -> tuple[Problem, Tensor]:
    """Nonconvex QP of the paper's section 4 in the box [−5, 5]; arguments as for `qp_parts`."""
    f, A, x_1 = qp_parts(seed, n, m, **generator)
    return Problem(f, equality=A, g=prox.Box(-5.0, 5.0)), x_1


def qp_parts(
    seed: int,
    n: int = 100,
    m: int = 20,
    *,
    eigenvalues: float = 50.0,
    q: float = 2.0,
    norm: str = "spectral",
) -> tuple[Quadratic, Linear, Tensor]:
    """½xᵀŜᵀΛŜx + qᵀx, Cx − b, and a start.

    Args:
        seed: of all random numbers.
        n: unknowns.
        m: equalities, in [1, n].
        eigenvalues: standard deviation of the entries of Λ.
        q: standard deviation of the entries of q.
        norm: the norm by which Ŝ is normalized, "spectral" or "frobenius".
    """
    if not 1 <= m <= n:
        raise ValueError(f"m must be in [1, n = {n}], got {m!r}")
    if norm not in ("spectral", "frobenius"):
        raise ValueError(f"norm must be 'spectral' or 'frobenius', got {norm!r}")
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    diagonal, S = eigenvalues * normal(n), normal(n, n)
    S /= torch.linalg.matrix_norm(S, 2 if norm == "spectral" else "fro")
    Q, linear, C = S.T @ torch.diag(diagonal) @ S, q * normal(n), normal(m, n)
    b, x_1 = C @ normal(n), normal(n).clamp(-5, 5)
    return Quadratic(Q, linear), Linear(C, b), x_1


def clustering(
    features: Tensor, seed: int = 0, r: int = 20, s: int = 10, scale: float = 1e-3
) -> tuple[Problem, Tensor]:
    """Clustering (Burer and Monteiro) of the rows of `features` by their distances.

    Args:
        features: one row for each of the n points.
        seed: of the start.
        r: columns of X, in [s, n]; fewer than s cannot separate s clusters.
        s: clusters, in [1, n].
        scale: entries of the start are uniform in [0, scale], > 0.
    """
    n = len(features)
    if not 1 <= s <= n:
        raise ValueError(f"s must be in [1, n = {n}], got {s!r}")
    if not s <= r <= n:
        raise ValueError(f"r must be in [s = {s}, n = {n}], got {r!r}")
    if not 0 < scale < math.inf:
        raise ValueError(f"scale must be positive and finite, got {scale!r}")
    generator = torch.Generator().manual_seed(seed)
    features = features.double()
    x_1 = scale * torch.rand(n, r, dtype=torch.float64, generator=generator)
    D = torch.cdist(features, features)
    g = prox.NonNegativeBall(math.sqrt(s))
    return Problem(Spread(D + D.T), equality=RowSums(), g=g), x_1
