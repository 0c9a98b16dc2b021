"""Instances of the paper's problems, which the configs instantiate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from experiments.problems import deterministic
from torch_powalm import Problem, solvers

if TYPE_CHECKING:
    from collections.abc import Callable

    from experiments.features import Features


class Instance(NamedTuple):
    """A problem with its start and further data.

    Args:
        problem: the problem.
        x_1: its start.
        f_star: the smallest objective, if it is known.
        features: the clustered points, if it is a clustering.
        clusters: their number.
    """

    problem: Problem
    x_1: Tensor
    f_star: float | None = None
    features: Features | None = None
    clusters: int = 0


def gevp(seed: int, n: int, factor: float) -> Instance:
    """Minimize factor · xᵀCx subject to ‖x‖ = 1, with f* from the eigenvalues of C."""
    problem, x_1 = deterministic.gevp(seed, n, factor)
    eigenvalues = torch.linalg.eigvalsh(deterministic.gevp_matrix(seed, n)[0])
    return Instance(problem, x_1, factor * eigenvalues[0].item())


def gevp_step(seed: int, n: int) -> Callable[[float], solvers.AcceleratedGradient]:
    """The paper's accelerated gradient for a GEVP, step 0.5/(10‖C‖ + 5000 + 500β), no restarts."""
    C_norm = torch.linalg.matrix_norm(deterministic.gevp_matrix(seed, n)[0], 2).item()

    def at_penalty(beta: float) -> solvers.AcceleratedGradient:
        step = 0.5 / (10 * C_norm + 5000 + 500 * beta)
        return solvers.AcceleratedGradient(step=step, restart=False)

    return at_penalty


def qp(seed: int, n: int, m: int, eigenvalues: float, q: float, norm: str) -> Instance:
    """A nonconvex QP with m equalities and a box."""
    return Instance(*deterministic.qp(seed, n, m, eigenvalues=eigenvalues, q=q, norm=norm))


def qp_proximal_point(**generator: Any) -> solvers.ProximalPoint:
    """The paper's iPPM on a QP: ρ = ‖Q‖, the constant of its lemma where A is linear."""
    f, _, _ = deterministic.qp_parts(**generator)
    rho = torch.linalg.matrix_norm(f.Q, 2).item()
    return solvers.ProximalPoint(rho=rho, max_inner=100_000)


def qp_upfag(point: str = "best", **generator: Any) -> Callable[[float], solvers.UPFAG]:
    """UPFAG on a QP whose first trials are 1/(‖Q‖ + β‖C‖²), the inverse curvature for ν = 1."""
    f, A, _ = deterministic.qp_parts(**generator)
    Q_norm, C_norm = (torch.linalg.matrix_norm(M, 2).item() for M in (f.Q, A.C))

    def at_penalty(beta: float) -> solvers.UPFAG:
        step_1 = 1 / (Q_norm + beta * C_norm**2)
        return solvers.UPFAG(step_1=step_1, trial="first", point=point)

    return at_penalty


def clustering(
    features: Features, seed: int, r: int, s: int, scale: float, probabilities: bool
) -> Instance:
    """Clustering of images by the distances of their features.

    Args:
        features: outputs of the network, before any softmax.
        seed: of the start.
        r: columns of X.
        s: clusters.
        scale: of the start, uniform in [0, scale].
        probabilities: use the softmax of the outputs.
    """
    if probabilities:
        outputs = torch.from_numpy(features.outputs).softmax(1).numpy()
        features = replace(features, outputs=outputs)
    points = torch.from_numpy(features.outputs)
    problem, x_1 = deterministic.clustering(points, seed, r, s, scale)
    return Instance(problem, x_1, features=features, clusters=s)
