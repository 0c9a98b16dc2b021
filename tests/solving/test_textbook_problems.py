"""Problems of the CUTEst collection, written out, with bounds on their gradients."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tests.problems import vector
from tests.versions import TORCH
from torch_powalm import Problem, Status, power_alm, prox


class Textbook(NamedTuple):
    problem: Problem
    x_1: Tensor
    objective: float
    gradients: int


def hs1() -> Textbook:
    box = prox.Box(vector(-math.inf, -1.5), vector(math.inf, math.inf))
    problem = Problem(lambda x: 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2, g=box)
    return Textbook(problem, vector(-2, 1), 0.0, 60)


def hs12() -> Textbook:
    problem = Problem(
        lambda x: 0.5 * x[0] ** 2 + x[1] ** 2 - x[0] * x[1] - 7 * x[0] - 7 * x[1],
        inequality=lambda x: (4 * x[0] ** 2 + x[1] ** 2 - 25).reshape(1),
    )
    return Textbook(problem, vector(0, 0), -30.0, 40)


def hs43() -> Textbook:
    def f(x: Tensor) -> Tensor:
        return x @ x + x[2] ** 2 - 5 * x[0] - 5 * x[1] - 21 * x[2] + 7 * x[3]

    def inequality(x: Tensor) -> Tensor:
        a, b, c, d = x
        return torch.stack(
            (
                x @ x + a - b + c - d - 8,
                x @ x + b**2 + d**2 - a - d - 10,
                2 * a**2 + b**2 + c**2 + 2 * a - b - d - 5,
            )
        )

    return Textbook(
        Problem(f, inequality=inequality), torch.zeros(4, dtype=torch.float64), -44.0, 60
    )


def hs100() -> Textbook:
    def f(x: Tensor) -> Tensor:
        squares = (x[0] - 10) ** 2 + 5 * (x[1] - 12) ** 2 + 3 * (x[3] - 11) ** 2 + 7 * x[5] ** 2
        powers = x[2] ** 4 + 10 * x[4] ** 6 + x[6] ** 4
        return squares + powers - 4 * x[5] * x[6] - 10 * x[5] - 8 * x[6]

    def inequality(x: Tensor) -> Tensor:
        a, b, c, d, e, u, v = x
        return torch.stack(
            (
                2 * a**2 + 3 * b**4 + c + 4 * d**2 + 5 * e - 127,
                7 * a + 3 * b + 10 * c**2 + d - e - 282,
                23 * a + b**2 + 6 * u**2 - 8 * v - 196,
                4 * a**2 + b**2 - 3 * a * b + 2 * c**2 + 5 * u - 11 * v,
            )
        )

    return Textbook(Problem(f, inequality=inequality), vector(1, 2, 0, 4, 0, 1, 1), 680.6300573, 60)


def chaconn2() -> Textbook:
    def inequality(x: Tensor) -> Tensor:
        a, b, u = x
        values = (a**4 + b**2, (2 - a) ** 2 + (2 - b) ** 2, 2 * torch.exp(b - a))
        return torch.stack(values) - u

    return Textbook(Problem(lambda x: x[2], inequality=inequality), vector(2, 2, 0), 2.0, 80)


def diagiqb() -> Textbook:
    # Concave along four axes: the minimum is where those are at a bound.
    i = torch.arange(1, 11, dtype=torch.float64)
    h = i**2 / 10 - 5 + 0.1
    low, high = -1e5, 1e6
    ends = torch.stack([0.5 * h * b**2 + b for b in (low, high)]).amin(0)
    inside = -0.5 / h.clamp(min=1e-9)
    objective = torch.where(h > 0, inside, ends).sum().item()
    problem = Problem(lambda x: 0.5 * (h * x) @ x + x.sum(), g=prox.Box(low, high))
    return Textbook(problem, torch.ones(10, dtype=torch.float64), objective, 80)


def hs116() -> Textbook:
    # The residual of 50 ≤ f is hard to decrease: the slope of the violation is small there.
    low = vector(0.1, 0.1, 0.1, 1e-4, 0.1, 0.1, 0.1, 0.1, 500, 0.1, 1, 1e-4, 1e-4)
    high = vector(1, 1, 1, 0.1, 0.9, 0.9, 1000, 1000, 1000, 500, 150, 150, 150)

    def above_zero(x: Tensor) -> Tensor:
        a, b, c, d, e, f, g, h, i, j, k, m, n = x
        return torch.stack(
            (
                c - b,
                b - a,
                1 - 0.002 * (g - h),
                k + m + n - 50,
                250 - k - m - n,
                n - 1.262626 * j + 1.231059 * c * j,
                e - 0.03475 * b - 0.975 * b * e + 0.00975 * b**2,
                f - 0.03475 * c - 0.975 * c * f + 0.00975 * c**2,
                e * g - a * h - d * g + d * h,
                1 - 0.002 * (b * i + e * h - a * h - f * i) - e - f,
                b * i - c * j - f * i - 500 * b + 500 * f + b * j,
                b - 0.9 - 0.002 * (b * j - c * j),
                d - 0.03475 * a - 0.975 * a * d + 0.00975 * a**2,
                k - 1.262626 * h + 1.231059 * a * h,
                m - 1.262626 * i + 1.231059 * b * i,
            )
        )

    problem = Problem(
        lambda x: x[10:].sum(), inequality=lambda x: -above_zero(x), g=prox.Box(low, high)
    )
    x_1 = vector(0.5, 0.8, 0.9, 0.1, 0.14, 0.5, 489, 80, 650, 450, 150, 150, 150)
    return Textbook(problem, x_1, 97.588409, 300)


def n10foldtr() -> Textbook:
    # A tenfold root: no objective, and a Jacobian that is singular at the only solution.
    def equality(x: Tensor) -> Tensor:
        sums = x.cumsum(0)
        return torch.cat((sums[:-2], sums[-2:-1] ** 2, sums[-1:] ** 5))

    problem = Problem(lambda x: 0.0 * x.sum(), equality=equality)
    return Textbook(problem, torch.full((10,), 10.0, dtype=torch.float64), 0.0, 300)


NAMED = (hs1, hs12, hs43, hs100, chaconn2, diagiqb, hs116, n10foldtr)
TEXTBOOK = {build.__name__: build for build in NAMED}


@pytest.mark.parametrize("nu", [1.0, 0.8])
@pytest.mark.parametrize("name", TEXTBOOK)
def test_textbook_problems_converge(name: str, nu: float) -> None:
    if (name, nu) == ("hs116", 1.0) and TORCH < (2, 5):
        pytest.skip("rounding of torch 2.4 leads it to the end of its budget")
    known = TEXTBOOK[name]()
    solution = power_alm(known.problem, known.x_1, nu=nu, max_gradients=known.gradients)
    assert solution.status is Status.CONVERGED
    assert solution.missing == ()
    residuals = known.problem.residuals(solution.x, solution.y)
    assert residuals.primal <= 1e-4
    assert residuals.dual <= 1e-4
    assert abs(solution.objective - known.objective) <= 1e-3 * max(1.0, abs(known.objective))
