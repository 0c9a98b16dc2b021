"""What ψ and the outer loop expect of a solver."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.problems import vector
from torch_powalm import Problem, power_alm, prox, solvers

SOLVERS = [
    solvers.PANOC(),
    solvers.Spectral(),
    solvers.UPFAG(),
    solvers.FastGradient(rho=1.0, holder=60.0),
    solvers.AdaptiveGradient(),
    solvers.AcceleratedGradient(),
    solvers.AcceleratedGradient(step=0.01),
    solvers.ProximalPoint(),
    solvers.ProximalPoint(rho=1.0, inner=solvers.PANOC()),
    solvers.FromTorch(torch.optim.SGD, lr=0.01, momentum=0.9),
    solvers.FromTorch(torch.optim.Adam, lr=0.1),
    solvers.FromTorch(torch.optim.LBFGS, lr=0.1),
]


class Recorded:
    """½ Σ h_i (x_i − c_i)² that keeps every tensor it is given, and a copy of it."""

    def __init__(self) -> None:
        self.h = torch.logspace(0, 1.5, 8, dtype=torch.float64)
        self.c = torch.linspace(-1, 2, 8, dtype=torch.float64)
        self.seen: list[tuple[Tensor, Tensor]] = []

    def value(self, x: Tensor) -> float:
        self.seen.append((x, x.clone()))
        return 0.5 * float((self.h * (x - self.c) ** 2).sum())

    def value_and_grad(self, x: Tensor) -> tuple[float, Tensor]:
        return self.value(x), self.h * (x - self.c)


@pytest.mark.parametrize("g", [prox.Zero(), prox.Box(-0.5, 0.5), prox.L1(0.3), prox.Ball(1.0)])
@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_a_solver_does_not_modify_a_tensor_that_it_has_passed_on(
    solver: solvers.Solver, g: prox.Proximable
) -> None:
    psi, start = Recorded(), torch.full((8,), 0.3, dtype=torch.float64)
    seen = psi.seen
    with torch.no_grad():
        for iterate in islice(solver.iterate(psi, g, start, 1e-6), 12):
            seen.append((iterate.x, iterate.x.clone()))
    assert len(seen) > 12
    assert all(torch.equal(x, copy) for x, copy in seen)
    assert torch.equal(start, torch.full_like(start, 0.3))


def test_a_solver_that_certifies_points_that_are_not_finite_does_not_raise() -> None:
    class Diverging:
        def iterate(self, psi: Any, g: Any, x: Tensor, tol: float) -> Iterator[solvers.Iterate]:
            yield solvers.Iterate(x - psi.value_and_grad(x)[1], tol, 0.0)

    problem = Problem(lambda x: 0.25 * (x**4).sum(), equality=lambda x: x[:1] - 1)
    solution = power_alm(problem, vector(30, -10), beta_1=1.0, solver=Diverging())
    assert not solution.converged
    assert solution.x.isfinite().all()
