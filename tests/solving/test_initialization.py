"""The first penalty, and subproblems that are given up."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.problems import dual_state, vector
from torch_powalm import Problem, power_alm, solvers
from torch_powalm.result import Status
from torch_powalm.solving.initialization import first_penalty
from torch_powalm.solving.subproblem import Subproblem
from torch_powalm.solving.termination import DescentMonitor

C, M, X = vector(3, -4, 0), vector(0, 1, 2), vector(6, 0, 8)


def linear(f_scale: float = 1.0, scale: float = 1.0) -> Problem:
    """⟨c, x⟩ with ⟨m, x − X⟩ = 0: feasible at X, so that ρ is 0.1 ‖m‖ ‖x‖ there."""
    return Problem(lambda x: f_scale * (C @ x), equality=lambda x: scale * (M @ (x - X)).reshape(1))


@pytest.mark.parametrize("nu", [0.4, 0.8, 1.0])
@pytest.mark.parametrize(("stiff", "p", "q"), [(True, 10.0, 0.04), (False, 1.0, 1e-3)])
def test_first_penalty_is_the_formula(nu: float, stiff: bool, p: float, q: float) -> None:
    slope, x_norm = math.sqrt(5), 10.0
    rho = 0.1 * slope * x_norm
    expected = p * 5.0 / (slope * rho) * (q * rho) ** (1 - nu)
    assert first_penalty(linear(), X, nu, stiff=stiff) == pytest.approx(expected)


@pytest.mark.parametrize("nu", [0.5, 1.0])
def test_first_penalty_scales_with_objective_and_constraints(nu: float) -> None:
    beta = first_penalty(linear(), X, nu, stiff=True)
    assert first_penalty(linear(f_scale=1e6), X, nu, stiff=True) == pytest.approx(1e6 * beta)
    scaled = first_penalty(linear(scale=1e6), X, nu, stiff=True)
    assert scaled == pytest.approx(1e6 ** -(1 + nu) * beta)


@pytest.mark.parametrize(
    ("solver", "stiff"),
    [(None, True), (solvers.PANOC(), True), (solvers.Spectral(), False), (solvers.UPFAG(), False)],
)
def test_only_quasi_newton_directions_get_the_stiff_penalty(
    solver: solvers.Solver | None, stiff: bool
) -> None:
    problem = Problem(lambda x: x @ x + C @ x, equality=lambda x: (M @ x - 1).reshape(1))
    solution = power_alm(problem, X, nu=0.8, solver=solver, max_outer=1)
    assert solution.records[0].beta == first_penalty(problem, X, 0.8, stiff=stiff)


@pytest.mark.parametrize(("decrease", "idle"), [(1e-9, True), (1e-12, False)])
def test_a_decrease_of_psi_counts_as_progress_from_the_given_size_on(
    decrease: float, idle: bool
) -> None:
    problem = Problem(lambda x: 1 + x.sum(), equality=lambda x: 0 * x)
    dual = dual_state(nu=0.8, omega=1.1, sigma_1=10.0)
    x = torch.zeros(1, dtype=torch.float64)
    dual.start(x)
    psi = Subproblem(problem, dual, monitor=DescentMonitor(decrease, max_idle=2000))
    for k in range(2001):
        psi.value(x - 5e-13 * k)
    assert psi.monitor.is_idle() is idle


def test_a_subproblem_that_hardly_falls_is_given_up_unless_told_otherwise() -> None:
    """Tiny fixed steps: every subproblem would take 5,000 iterations."""
    problem = Problem(lambda x: C @ x + x @ x, equality=lambda x: (M @ x - 1).reshape(1))
    slow = solvers.AcceleratedGradient(step=1e-16)
    settings = {
        "solver": slow,
        "lam": 1e-3,
        "active_set": False,
        "max_inner": 5_000,
        "max_outer": 1,
    }
    given_up = power_alm(problem, X, max_idle=50, **settings)
    assert given_up.records[0].inner_status is Status.STALLED
    assert given_up.records[0].inner_iterations < 100
    patient = power_alm(problem, X, max_idle=None, **settings)
    assert patient.records[0].inner_iterations > 100


def test_a_constraint_that_explodes_beside_the_start_says_nothing_of_the_penalty() -> None:
    def inequality(x: Tensor) -> Tensor:
        return (1e-8 * x[0] ** 2 + x[1] ** 2).exp().reshape(1) - 1.01

    problem = Problem(lambda x: x.sum(), inequality=inequality)
    x = vector(100, 0.1)
    assert problem.oracle.at(x + vector(0, 7)).r.item() > 1e20
    assert 1e-6 < first_penalty(problem, x, 1.0, stiff=True) < 1e5
    solution = power_alm(problem, x)
    assert solution.status is Status.CONVERGED


def test_rows_that_cancel_in_a_sum_do_not_make_the_first_penalty_large() -> None:
    angle = torch.arange(200, dtype=torch.float64) * (2 * math.pi / 200)
    J = torch.stack((angle.cos(), angle.sin()), 1)
    problem = Problem(lambda x: x[1], inequality=lambda x: J @ x - 1)
    x = vector(0.3, 0.2)
    assert 1 < first_penalty(problem, x, 1.0, stiff=True) < 1e4
    solution = power_alm(problem, x)
    assert solution.status is Status.CONVERGED
    assert solution.objective == pytest.approx(-1.0, abs=1e-3)
