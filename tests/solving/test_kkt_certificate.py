"""The certificate of a point: which multipliers it takes, and what it measures with them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.problems import dual_state, vector
from torch_powalm import Problem, prox
from torch_powalm.solving import kkt_certificate
from torch_powalm.solving.gradient_scaling import ScaledProblem, Scales
from torch_powalm.solving.kkt_certificate import Certified, certify, improve_multipliers
from torch_powalm.solving.settings import Tolerances

EPS = 1e-4


def linear(g: prox.Proximable | None = None) -> Problem:
    """−2x_1 + x_2² with x_1 = 1: at (1, 0) the multiplier is 2."""
    return Problem(lambda x: -2 * x[0] + x[1] ** 2, equality=lambda x: x[:1] - 1, g=g)


def certified(
    problem: Problem, x: Tensor, y: Tensor, eps_phi: float = EPS, eps_A: float = EPS
) -> Certified:
    """The certificate at x when the dual state has y and a penalty of 3."""
    dual = dual_state(beta_1=3.0, omega=2.0)
    at = problem.oracle.at(x)
    dual.start(at.r)
    dual.load_state_dict({**dual.state_dict(), "y": y})
    with torch.no_grad():
        point = certify(problem, dual, at)
        return improve_multipliers(problem, point, Tolerances(eps_phi, eps_A), at)


def test_the_weight_certifies_where_it_is_good_enough() -> None:
    found = certified(linear(), vector(1 + 1e-5, 0), vector(2))
    assert found.multiplier == "weight"
    torch.testing.assert_close(found.y, vector(2 + 3e-5))  # y + β A
    assert found.residuals.primal == pytest.approx(1e-5)
    assert found.residuals.dual == pytest.approx(3e-5)


def test_the_objective_is_that_of_f_and_g() -> None:
    found = certified(linear(prox.L1(0.5)), vector(1, -4), vector(2))
    assert found.objective == -2 + 16 + 0.5 * 5
    assert torch.equal(found.x, vector(1, -4))


def test_least_squares_are_tried_at_a_feasible_point_only() -> None:
    feasible = certified(linear(), vector(1 + 1e-5, 0), vector(-1))
    assert feasible.multiplier == "least squares"
    assert feasible.residuals.dual <= EPS
    torch.testing.assert_close(feasible.y, vector(2), rtol=0, atol=EPS)
    infeasible = certified(linear(), vector(1 + 2 * EPS, 0), vector(-1))
    assert infeasible.multiplier == "weight"
    assert infeasible.residuals.dual == pytest.approx(3 - 6 * EPS)


def test_tolerances_that_are_just_met_count_as_met() -> None:
    # x_2 = ¼ leaves a stationarity of ½ with the weight, and no multiplier makes it smaller.
    problem, x, y = linear(), vector(1.5, 0), vector(-1)
    weight = certified(problem, x, y, eps_phi=1.5, eps_A=0.5)  # ŷ = −1 + 3·½, v = −2 + ½
    assert (weight.multiplier, weight.residuals.dual) == ("weight", 1.5)
    other = certified(problem, x, y, eps_phi=1.4, eps_A=0.5)
    assert other.multiplier == "least squares"


def test_least_squares_that_gain_nothing_leave_the_weight() -> None:
    # v = (0, ½) is not in the range of Jᵀ.
    found = certified(linear(), vector(1, 0.25), vector(2))
    assert (found.multiplier, found.residuals.dual) == ("weight", 0.5)
    assert torch.equal(found.y, vector(2))


def test_where_the_weight_is_not_finite_the_multiplier_stands_in() -> None:
    problem = Problem(lambda x: x.sum(), equality=lambda x: x * math.inf)
    found = certified(problem, vector(1), vector(7))
    assert torch.equal(found.y, vector(7))
    assert found.residuals.primal == math.inf


def test_least_squares_see_residuals_in_the_units_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[float] = []

    def guess(_: object, at: object, y: Tensor, dual_residual: float, tol: float) -> Tensor:
        seen.extend((dual_residual, tol))
        return y

    monkeypatch.setattr(kkt_certificate, "least_squares_multipliers", guess)
    scaled = ScaledProblem(linear(), Scales(0.25, vector(0.5)))
    found = certified(scaled, vector(1, 0), vector(-1))  # −1 here is −1 · 0.5 / 0.25 for the user
    assert found.residuals.dual == 4.0
    assert seen == [0.25 * 4.0, 0.25 * EPS]
