"""The last steps of a run with few unknowns, with the curvature of the last subproblem."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.problems import dual_state, vector
from torch_powalm import Problem, Status, power_alm, prox
from torch_powalm.solving.kkt_certificate import certify
from torch_powalm.solving.lagrangian_curvature import LagrangianCurvature
from torch_powalm.solving.newton_finish import newton_finish
from torch_powalm.solving.settings import Tolerances
from torch_powalm.solving.subproblem import Subproblem

F64 = torch.float64


def hs7() -> Problem:
    return Problem(
        lambda x: torch.log(1 + x[0] ** 2) - x[1],
        equality=lambda x: ((1 + x[0] ** 2) ** 2 + x[1] ** 2 - 4).reshape(1),
    )


def test_the_first_subproblem_is_followed_by_few_steps() -> None:
    solution = power_alm(hs7(), vector(2, 2))
    assert solution.status is Status.CONVERGED
    assert solution.records[-1].multiplier == "active set"
    assert solution.gradient_calls <= 16
    assert solution.objective == pytest.approx(-math.sqrt(3), abs=1e-4)


def test_bounds_and_inequalities_are_exact() -> None:
    problem = Problem(
        lambda x: (x - vector(2, 2, 2)).square().sum(),
        inequality=lambda x: (x.sum() - 3).reshape(1),
        g=prox.Box(vector(-1, -1, -1), vector(0.5, 5, 5)),
    )
    solution = power_alm(problem, vector(0, 0, 0), nu=0.8)
    assert solution.status is Status.CONVERGED
    torch.testing.assert_close(solution.x, vector(0.5, 1.25, 1.25), rtol=0, atol=1e-6)
    torch.testing.assert_close(solution.y, vector(1.5), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("start", "found"), [((0.1, -0.9), True), ((0.1, 0.9), False)])
def test_a_maximum_is_no_solution(start: tuple[float, float], found: bool) -> None:
    # On the circle x_2 has its minimum at (0, -1) and its maximum at (0, 1).
    problem = Problem(lambda x: x[1], equality=lambda x: (x @ x - 1).reshape(1))
    dual = dual_state(beta_1=10.0)
    x: Tensor = vector(*start)
    at = problem.oracle.at(x)
    dual.start(at.r, None)
    dual.load_state_dict({**dual.state_dict(), "y": vector(-0.5 * start[1])})
    curvature = LagrangianCurvature(problem, x)
    curvature.B, curvature.is_guess = torch.eye(2, dtype=F64), False
    psi = Subproblem(problem, dual, None, None, curvature)
    point = certify(problem, dual, psi.point(x))._replace(y=dual.y)
    ended = newton_finish(problem, psi, at, point, Tolerances(1e-6, 1e-6), lambda: False)
    if found:
        assert ended is not None
        torch.testing.assert_close(ended.x, vector(0, -1), rtol=0, atol=1e-5)
    else:
        assert ended is None
