"""Scaling: on by default, in the user's units outside."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.problems import vector
from torch_powalm import Problem, power_alm
from torch_powalm.solvers import PANOC
from torch_powalm.solving.gradient_scaling import find_scales

a = vector(1, 2)


def badly_scaled(f: float = 1e6, c: float = 1e5) -> Problem:
    """The projection of 0 onto aᵀx = 5 at (1, 2), in inconvenient units."""
    return Problem(lambda x: 0.5 * f * (x @ x), equality=lambda x: c * (a @ x - 5).reshape(1))


@pytest.mark.parametrize("scale", [True, False])
def test_certificate_and_multipliers_are_in_the_users_units(scale: bool) -> None:
    problem = badly_scaled()
    solution = power_alm(problem, vector(3, -1), scale=scale)
    assert solution.converged
    residuals = problem.residuals(solution.x, solution.y)
    assert residuals.primal <= 1e-4
    assert residuals.dual <= 1e-4
    assert solution.residuals.primal == pytest.approx(residuals.primal, abs=1e-12)
    # f∇ + c aᵀy = 0: y = −f/c
    assert solution.y.item() == pytest.approx(-10.0, rel=1e-6)
    assert solution.objective == pytest.approx(2.5e6, rel=1e-6)


def test_small_gradients_are_not_scaled() -> None:
    problem = badly_scaled(1.0, 1.0)
    assert find_scales(problem, problem.oracle.at(vector(3, -1))) is None
    assert power_alm(problem, vector(3, -1)).state["scales"] is None


def test_large_rows_are_scaled_by_their_own_gradients() -> None:
    rows = torch.tensor([[1e6, 0.0], [0.0, 3.0], [0.0, 0.5]], dtype=torch.float64)
    problem = Problem(lambda x: x @ x, equality=lambda x: rows @ x)
    with torch.no_grad():
        scales = find_scales(problem, problem.oracle.at(vector(1, 1)))
    assert scales is not None
    assert scales.f == 1
    assert 1e-7 < scales.r[0] < 1e-5
    assert 0.1 < scales.r[1] <= 1
    assert scales.r[2] >= 0.5


@pytest.mark.parametrize("given", [{"beta_1": 1.0}, {"solver": PANOC()}])
def test_what_is_given_in_the_users_units_switches_scaling_off(given: dict[str, Any]) -> None:
    solution = power_alm(badly_scaled(), vector(3, -1), max_outer=1, **given)
    assert solution.state["scales"] is None


def test_lam_switches_the_tolerance_alone() -> None:
    automatic = power_alm(badly_scaled(), vector(3, -1), max_outer=1)
    given = power_alm(badly_scaled(), vector(3, -1), max_outer=1, lam=1.0)
    (f_scale, r_scale), (f_given, r_given) = automatic.state["scales"], given.state["scales"]
    assert f_given == f_scale < 1
    assert torch.equal(r_given, r_scale)
    assert given.records[0].beta == automatic.records[0].beta


def test_a_scaled_run_resumes() -> None:
    whole = power_alm(badly_scaled(), vector(3, -1), active_set=False)
    first = power_alm(badly_scaled(), vector(3, -1), active_set=False, max_outer=1)
    rest = power_alm(badly_scaled(), first.state["x"], active_set=False, state=first.state)
    assert torch.allclose(whole.x, rest.x, rtol=0, atol=1e-8)


def test_a_first_multiplier_is_in_the_users_units() -> None:
    solution = power_alm(badly_scaled(), vector(3, -1), y_1=vector(-10))
    assert solution.converged
    assert solution.y.item() == pytest.approx(-10.0, rel=1e-6)
