"""Five families of random problems, each in three scalings.

    sphere      ½ xᵀCx on the unit sphere, n = 100
    QP          nonconvex QP with 8 inequalities in a box, n = 30
    clustering  Burer and Monteiro, 60 points in 10 blobs, r = 10
    Stiefel     ⟨X, CXN⟩ with XᵀX = I, 30 × 4
    NLS         nonlinear least squares with 5 nonlinear equalities, n = 20

Each unscaled, with the objective × 1000 and with the constraints × 1000; plain torch functions.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from experiments.benchmarks.timed_run import Task
from torch_powalm import Problem, prox

SCALINGS = {
    "as it is": (1.0, 1.0),
    "objective x 1000": (1e3, 1.0),
    "constraints x 1000": (1.0, 1e3),
}
Built = tuple[Problem, Tensor]


def sphere(seed: int, f: float, c: float, n: int = 100) -> Built:
    """A quadratic on the sphere."""
    normal, uniform = _random(seed)
    C = 0.1 * normal(n, n)
    C = f * (C + C.T) / 2
    problem = Problem(lambda x: 0.5 * (x @ (C @ x)), equality=lambda x: c * (x @ x - 1).reshape(1))
    return problem, uniform(n)


def qp(seed: int, f: float, c: float, n: int = 30, m: int = 8) -> Built:
    """A nonconvex QP with inequalities."""
    normal, _ = _random(seed)
    eigenvalues, S = 50 * normal(n), normal(n, n)
    S = S / torch.linalg.matrix_norm(S, 2)
    Q, q, C = f * (S.T @ torch.diag(eigenvalues) @ S), f * 2 * normal(n), c * normal(m, n)
    b = C @ normal(n)
    problem = Problem(
        lambda x: 0.5 * (x @ (Q @ x)) + q @ x,
        inequality=lambda x: C @ x - b,
        g=prox.Box(-5.0, 5.0),
    )
    return problem, normal(n).clamp(-5, 5)


def clustering(seed: int, f: float, c: float, n: int = 60, r: int = 10, s: int = 10) -> Built:
    """Clustering of blobs."""
    normal, uniform = _random(seed)
    centers = 3 * normal(s, 10)
    points = (centers[torch.arange(n) % s] + 0.5 * normal(n, 10)).softmax(1)
    D = f * torch.cdist(points, points)
    problem = Problem(
        lambda X: (X * (D @ X)).sum(),
        equality=lambda X: c * (X @ X.sum(0) - 1),
        g=prox.NonNegativeBall(math.sqrt(s)),
    )
    return problem, 0.05 * uniform(n, r)


def stiefel(seed: int, f: float, c: float, n: int = 30, p: int = 4) -> Built:
    """A weighted trace on the Stiefel manifold."""
    normal, _ = _random(seed)
    C = normal(n, n)
    C = f * (C + C.T) / 2
    weights = torch.arange(1.0, p + 1, dtype=torch.float64)
    upper, eye = torch.triu_indices(p, p), torch.eye(p, dtype=torch.float64)
    problem = Problem(
        lambda X: (X * (C @ X) * weights).sum(),
        equality=lambda X: c * (X.T @ X - eye)[upper[0], upper[1]],
    )
    return problem, normal(n, p)


def nls(seed: int, f: float, c: float, n: int = 20, m: int = 5) -> Built:
    """Nonlinear least squares with feasible nonlinear equalities."""
    normal, _ = _random(seed)
    M, target, P, C = normal(40, n), normal(40), normal(m, n, n) / n, normal(m, n)

    def h(x: Tensor) -> Tensor:
        return (P @ x) @ x + torch.sin(C @ x)

    b = h(normal(n))

    def objective(x: Tensor) -> Tensor:
        Mx = M @ x
        return 0.5 * f * (torch.tanh(Mx) + 0.1 * Mx - target).square().sum()

    return Problem(objective, equality=lambda x: c * (h(x) - b)), normal(n)


def _random(seed: int) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """Functions that draw normal and uniform numbers from one generator."""
    generator = torch.Generator().manual_seed(seed)
    settings: dict[str, Any] = {"dtype": torch.float64, "generator": generator}
    return (
        lambda *shape: torch.randn(*shape, **settings),
        lambda *shape: torch.rand(*shape, **settings),
    )


FAMILIES: dict[str, Callable[[int, float, float], Built]] = {
    "sphere": sphere,
    "QP": qp,
    "clustering": clustering,
    "Stiefel": stiefel,
    "NLS": nls,
}


def task(family: str, seed: int, scaling: str, eps: float = 1e-4) -> Task:
    """One random problem."""
    scales = SCALINGS[scaling]
    x_1 = FAMILIES[family](seed, *scales)[1]
    return Task(family, seed, x_1, eps, lambda: FAMILIES[family](seed, *scales)[0])
