"""The search for a feasible point."""

from __future__ import annotations

import math
import time

import pytest
import torch
from torch import Tensor

from tests.problems import vector
from torch_powalm import prox
from torch_powalm.result import Status
from torch_powalm.solving.feasibility_restoration import restore
from torch_powalm.solving.power_alm import power_alm
from torch_powalm.solving.problem import Problem
from torch_powalm.solving.violation_slope import is_stuck


def test_the_time_of_a_run_bounds_its_search_for_a_feasible_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    def slow(x: Tensor) -> Tensor:
        nonlocal now
        now += 0.1
        last = 1 + 0.1 * x.square().sum().reshape(1)
        return torch.cat([100 * (x[1:] - x[:-1] ** 2), 1 - x[:-1], last])

    start = time.perf_counter()
    monkeypatch.setattr(time, "perf_counter", lambda: start + now)
    x_1 = -torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    solution = power_alm(Problem(lambda x: x.sum(), equality=slow), x_1, max_seconds=33.0)
    assert solution.status is Status.BUDGET
    assert now <= 40.0


def test_a_point_with_a_feasible_neighbor_is_not_stuck() -> None:
    problem = Problem(lambda x: x.sum(), inequality=lambda x: -x)
    assert not is_stuck(problem, vector(-1e-4), 1.0)


def test_a_slope_counts_if_it_is_a_tenth_of_that_at_a_neighbor() -> None:
    square = Problem(lambda x: x.sum(), equality=lambda x: x * x + 1)
    assert is_stuck(square, vector(0), 1.0)
    assert is_stuck(square, vector(1e-7), 1.0)
    assert not is_stuck(square, vector(1e-4), 1.0)  # the neighbor is at a distance of 1e-3


def test_restoring_returns_the_feasible_trial_point_that_ended_it() -> None:
    problem = Problem(lambda x: x.sum(), inequality=lambda x: 1 - x, g=prox.Box(-5.0, 5.0))
    restored = restore(problem, vector(-4, 3), 5.0, 1e-4, 100)
    assert restored is not None
    assert restored.feasible
    assert restored.x.min() >= 1 - 1e-4
    assert problem.g.value(restored.x) == 0


@pytest.mark.parametrize("x_1", [(-3, 9), (-1.2, 1.44), (0, 0)])
def test_a_point_in_a_valley_of_the_violation_is_not_taken_for_infeasible(
    x_1: tuple[float, float],
) -> None:
    # Along x_2 = x_1² the violation falls slowly to the solution (1, 1); beside it, it is steep. A
    # search for a feasible point that is cut off there must not end the run.
    problem = Problem(
        lambda x: 1e-3 * x.sum(),
        equality=lambda x: torch.stack((10 * (x[1] - x[0] ** 2), 1 - x[0])),
    )
    settings = {"sigma": "paper", "sigma_1": 0.0, "lam": 1e-3, "max_inner": 10}
    solution = power_alm(problem, vector(*x_1), **settings)
    assert solution.status is Status.CONVERGED
    torch.testing.assert_close(solution.x, vector(1, 1), rtol=0, atol=1e-3)


def test_a_slope_that_is_small_beside_that_of_a_neighbor_is_a_slope() -> None:
    # Beside the valley x_1 = x_2² the violation is 10⁵ times as steep as along it.
    def equality(x: Tensor) -> Tensor:
        return torch.stack((1e5 * (x[0] - x[1] ** 2), x[1] - 1))

    problem = Problem(lambda x: x.sum(), equality=equality)
    assert not is_stuck(problem, vector(0, 0), 1.0)
    least_squares = Problem(lambda x: x.sum(), equality=lambda x: torch.cat((x - 1, x + 1)))
    assert is_stuck(least_squares, vector(0, 0), 1.0)


@pytest.mark.parametrize("nu", [1.0, 0.7])
def test_without_an_objective_multipliers_stay_0_and_equations_are_solved(nu: float) -> None:
    def equality(x: Tensor) -> Tensor:
        return torch.stack((10 * (x[1] - x[0] ** 2), 1 - x[0]))

    problem = Problem(lambda x: 0.0 * x.sum(), equality=equality)
    solution = power_alm(problem, vector(-1.2, 1), nu=nu, max_gradients=60)
    assert solution.status is Status.CONVERGED
    assert all(record.y_norm == 0 for record in solution.records)
    fit = Problem(lambda x: 0.0 * x.sum(), equality=lambda x: torch.cat((equality(x), x[:1])))
    solution = power_alm(fit, vector(-1.2, 1), nu=nu, max_gradients=400)
    assert solution.status is Status.INFEASIBLE


def waves(x: Tensor) -> Tensor:
    """Zero at 1 only, with local minima of the violation around 1 at distances of about 3."""
    return torch.cat((0.3 * (x - 1), 3 * torch.sin(math.pi * (x - 1) / 3)))


def test_a_local_minimum_of_the_violation_is_left_for_a_feasible_point() -> None:
    solution = power_alm(Problem(lambda x: 0 * x.sum(), equality=waves), vector(-8))
    assert solution.status is Status.CONVERGED
    torch.testing.assert_close(solution.x, vector(1), rtol=0, atol=1e-4)


def test_searches_that_end_with_different_violations_do_not_show_infeasibility() -> None:
    rotated = Problem(lambda x: 0 * x.sum(), equality=waves, g=prox.Box(-80.0, 80.0))
    x_1 = torch.linspace(-80, -50, 6, dtype=torch.float64)
    solution = power_alm(rotated, x_1, max_outer=20)
    assert solution.status is not Status.INFEASIBLE


def test_searches_that_agree_show_infeasibility() -> None:
    def equality(x: Tensor) -> Tensor:
        return torch.stack((x[0] - 1, x[0] + 1, x[1]))

    solution = power_alm(Problem(lambda x: x @ x, equality=equality), vector(3, 4))
    assert solution.status is Status.INFEASIBLE
    torch.testing.assert_close(solution.x, vector(0, 0), rtol=0, atol=1e-4)
