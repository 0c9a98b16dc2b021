"""How runs end: budgets, Ctrl-C, values that are not finite."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.problems import KNOWN, vector
from torch_powalm import prox, solvers
from torch_powalm.result import OuterRecord, Solution, Status
from torch_powalm.solving.power_alm import power_alm
from torch_powalm.solving.problem import Problem


@pytest.mark.parametrize("budget", [{"max_gradients": 6}, {"max_seconds": 1e-9}])
def test_budgets_end_a_run(budget: dict[str, Any]) -> None:
    solution = power_alm(KNOWN.problem, KNOWN.x_1, eps_phi=1e-13, eps_A=1e-13, **budget)
    assert solution.status is Status.BUDGET
    assert len(solution.records) <= 4
    if "max_gradients" in budget:
        assert solution.gradient_calls <= 6 + 5


def test_outer_and_inner_iterations_are_bounded() -> None:
    solution = power_alm(
        KNOWN.problem, KNOWN.x_1, max_outer=3, max_inner=1, eps_phi=1e-13, eps_A=1e-13
    )
    assert solution.status is Status.MAX_OUTER
    assert [record.inner_iterations for record in solution.records] == [1, 1, 1]


def test_ctrl_c_returns_the_best_point_so_far() -> None:
    calls = 0

    def f(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 20:
            raise KeyboardInterrupt
        return 0.5 * (x @ x)

    problem = Problem(f, equality=lambda x: x[:1] - 1)
    settings = {"lam": 1e-3, "active_set": False, "eps_phi": 1e-13, "eps_A": 1e-13}
    solution = power_alm(problem, vector(3, -1), **settings)
    assert solution.status is Status.INTERRUPTED
    assert len(solution.records) >= 1
    assert solution.residuals.primal == min(r.primal_residual for r in solution.records)


def test_ctrl_c_in_the_first_subproblem_keeps_what_the_inner_solver_has_reached() -> None:
    calls = 0

    def f(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 30:
            raise KeyboardInterrupt
        return 0.25 * (x**4).sum()

    problem = Problem(f, equality=lambda x: x[:1] - 1)
    x_1 = vector(30, -10)
    solver = solvers.AcceleratedGradient(step=1e-4)
    solution = power_alm(problem, x_1, beta_1=1.0, lam=1e-8, active_set=False, solver=solver)
    assert solution.status is Status.INTERRUPTED
    assert [record.inner_status for record in solution.records] == [Status.INTERRUPTED]
    start = problem.residuals(x_1, solution.y)
    assert solution.residuals.stationarity < 0.9 * start.stationarity


@pytest.mark.parametrize("last", range(30, 78, 4))
def test_ctrl_c_ends_the_run_wherever_it_comes(last: int) -> None:
    calls = 0

    def sphere(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == last:
            raise KeyboardInterrupt
        return (x @ x - 1).reshape(1)

    # Soon feasible and never stationary enough: most calls are those of least squares.
    problem = Problem(lambda x: x @ (vector(1, 2, 3) * x), equality=sphere)
    solution = power_alm(problem, vector(3, 1, 1), beta_1=1.0, eps_phi=1e-15, eps_A=1e-1)
    assert solution.status is Status.INTERRUPTED
    # The certificate of the point found takes 48 to 63 calls, depending on rounding.
    assert calls <= last + 80


def test_values_that_are_not_finite_end_in_a_status() -> None:
    problem = Problem(lambda x: (1e200 * x**3).sum(), equality=lambda x: x**2 - 1)
    solver = solvers.AcceleratedGradient(step=1e3)
    solution = power_alm(problem, vector(2), beta_1=1.0, solver=solver)
    assert solution.status is Status.NOT_FINITE
    assert solution.x.isfinite().all()


@pytest.mark.parametrize("solver", [solvers.PANOC(), solvers.AcceleratedGradient()])
def test_a_certificate_that_is_not_a_number_is_none(solver: solvers.Solver) -> None:
    # The prox hits the minimizer 0, where ∇‖x‖ is 0/0.
    problem = Problem(
        lambda x: x.square().sum().sqrt(), equality=lambda x: x[:1] - x[1:2], g=prox.L1(1.0)
    )
    solution = power_alm(problem, vector(1, 2, 3), solver=solver)
    assert solution.status in (Status.NOT_FINITE, Status.STALLED)
    assert math.isfinite(solution.residuals.dual)


def test_functions_so_small_that_squares_vanish_raise_nothing() -> None:
    n, scale = 5000, 1e-18
    d = torch.linspace(1, 10, n, dtype=torch.float64)
    a = torch.ones_like(d) / n**0.5
    problem = Problem(
        lambda x: scale * (d * (x - 2).square()).sum(),
        equality=lambda x: scale * (a @ x - 1).reshape(1),
    )
    x_1 = torch.rand(n, generator=torch.Generator().manual_seed(0)).to(d)
    solution = power_alm(problem, x_1, eps_phi=1e-3 * scale, eps_A=1e-3 * scale, max_gradients=500)
    assert solution.x.isfinite().all()


def test_an_interrupt_after_the_end_does_not_change_the_status() -> None:
    def stop(record: OuterRecord, x: Tensor) -> None:
        if record.primal_residual <= 1e-4 and record.dual_residual <= 1e-4:
            raise KeyboardInterrupt

    assert power_alm(KNOWN.problem, KNOWN.x_1, callback=stop).status is Status.CONVERGED


def projection_without_multipliers(**settings: Any) -> Solution:
    """A projection by penalties alone: y stays 0, so that β decides how far it gets."""
    problem = Problem(
        lambda x: ((x - vector(1, 2)) ** 2).sum(), equality=lambda x: (x.sum() - 1).reshape(1)
    )
    fixed = {"sigma": "paper", "sigma_1": 0.0, "lam": 1e-3, "active_set": False}
    return power_alm(problem, vector(0, 0), **fixed, max_outer=1000, **settings)


def test_a_run_stalls_after_thirty_iterations_without_a_better_point() -> None:
    solution = projection_without_multipliers(beta_1=1.0, beta_max=1.0)
    assert solution.status is Status.STALLED
    assert {record.inner_status for record in solution.records} == {Status.CONVERGED}
    assert len(solution.records) == 1 + 30


def test_a_run_does_not_stall_while_its_penalty_is_still_small_and_grows() -> None:
    # β must grow from 1e-5 a thousandfold before it moves the point: 77 factors of 1.1.
    solution = projection_without_multipliers(beta_1=1e-5, omega=1.1)
    assert solution.status is Status.CONVERGED
    violations = [record.primal_residual for record in solution.records]
    assert violations[60] > 0.99 * violations[0]
