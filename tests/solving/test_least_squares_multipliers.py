"""Least-squares multipliers as a certificate."""

from __future__ import annotations

import torch

from tests.problems import PROBLEMS, vector
from torch_powalm import solvers
from torch_powalm.solving.least_squares_multipliers import least_squares_multipliers
from torch_powalm.solving.power_alm import power_alm
from torch_powalm.solving.problem import Problem


def test_least_squares_multipliers_certify_where_the_weight_does_not() -> None:
    # A subproblem that is cut off after two iterations beside the solution leaves a poor ŷ.
    known = PROBLEMS["simplex in a box"]
    solution = power_alm(
        known.problem,
        known.x,
        y_1=vector(3),
        beta_1=1e-9,
        max_outer=1,
        max_inner=1,
        solver=solvers.AcceleratedGradient(step=1e-12),
    )
    assert solution.converged
    assert solution.records[-1].multiplier == "least squares"
    assert torch.allclose(solution.y, known.y, atol=1e-4)


def test_search_for_multipliers_ends_where_they_are_good_enough() -> None:
    generator = torch.Generator().manual_seed(0)
    J, y = (torch.randn(*n, dtype=torch.float64, generator=generator) for n in ((20, 250), (20,)))
    problem = Problem(lambda x: -(J.T @ y) @ x, equality=lambda x: J @ x)  # y is exact everywhere
    x, before = torch.zeros(250, dtype=torch.float64), problem.oracle.calls.constraint
    found = least_squares_multipliers(problem, problem.oracle.at(x), y + 1e-3, 1e-2, 1e-3)
    assert problem.oracle.calls.constraint - before <= 50
    assert 1e-4 < problem.residuals(x, found).dual <= 1e-3


def test_least_squares_leaves_inactive_inequalities_without_a_multiplier() -> None:
    # y = (2, 0) is the only certificate: the inequality has the same slope and is far from active.
    problem = Problem(
        lambda x: -2 * x[0] + x[1] ** 2,
        equality=lambda x: x[:1] - 1,
        inequality=lambda x: x[:1] - 2,
    )
    solution = power_alm(
        problem,
        vector(1, 0),
        y_1=vector(-1, 0),
        beta_1=1e-9,
        max_outer=1,
        max_inner=1,
        solver=solvers.AcceleratedGradient(step=1e-12),
    )
    assert solution.converged
    assert solution.records[-1].multiplier == "least squares"
    torch.testing.assert_close(solution.y, vector(2, 0), rtol=0, atol=1e-4)
    assert solution.y[1] == 0
