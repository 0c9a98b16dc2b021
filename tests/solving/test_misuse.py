"""Problems, settings and functions that raise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.problems import KNOWN, PROBLEMS, Affine, vector
from torch_powalm import prox, solvers
from torch_powalm.solving.power_alm import power_alm
from torch_powalm.solving.problem import Problem


def test_a_start_outside_the_domain_is_projected_and_said_once() -> None:
    known = PROBLEMS["simplex in a box"]
    with pytest.warns(UserWarning, match="x_1 is outside dom g") as caught:
        solution = power_alm(known.problem, vector(3, -2, 0.5))
    assert len(caught) == 1
    assert solution.converged


def square(x: Tensor) -> Tensor:
    return (x**2).sum()


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: Problem(3, equality=square), TypeError, "f must be callable"),
        (lambda: Problem(square, equality=1), TypeError, "equality must be callable or have"),
        (lambda: Problem(square, inequality=[1]), TypeError, "inequality must be callable or have"),
        (
            lambda: Problem(square, equality=square, g=prox.Box),
            TypeError,
            "g must have value, prox and distance, got <class",
        ),
    ],
)
def test_a_wrong_problem_raises(
    build: Callable[[], Problem], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"f": lambda x: x}, r"f must return a scalar tensor, got shape \(2,\)"),
        ({"f": lambda x: 1.0}, r"f must return a scalar tensor, got 1\.0"),
        ({"f": lambda x: x.sum() * torch.nan}, "f must be finite at x_1, got nan"),
        ({"f": lambda x: x.sqrt().sum()}, "the gradient of f must be finite at x_1, got inf"),
        ({"f": lambda x: x.sum().detach()}, "f must be differentiable .* without gradient"),
        (
            {"f": lambda x: x.sum().float()},
            "f must return torch.float64 on cpu as x_1, got torch.f",
        ),
        ({"equality": square}, r"equality must return a 1-D tensor, got shape \(\)"),
        ({"equality": lambda x: x.detach()}, "equality must be differentiable .* without gradient"),
        ({"equality": lambda x: x.float()}, "equality must return torch.float64 on cpu as x_1"),
        ({"equality": lambda x: x[:0]}, r"equality must return a 1-D tensor, got shape \(0,\)"),
        ({"inequality": lambda x: x / 0}, "inequality must be finite at x_1, got nan"),
        (
            {"equality": lambda x: torch.ones(1, dtype=x.dtype, requires_grad=True)},
            "equality must be differentiable .* does not depend on it",
        ),
        (
            {"equality": Affine(torch.ones(1, 3, dtype=torch.float64).T[:2], vector(1, 1))},
            r"equality must return a gradient of shape \(2,\), got \(1,\)",
        ),
    ],
)
def test_what_the_functions_return_is_checked(parts: dict[str, Any], message: str) -> None:
    functions = {"f": square, "equality": lambda x: x, **parts}
    if "Affine" in type(functions["equality"]).__name__:
        functions["equality"].values = lambda x: x
    problem = Problem(functions.pop("f"), **functions)
    with pytest.raises((TypeError, ValueError), match=message):
        power_alm(problem, vector(0, 0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eps_phi": -1.0}, r"eps_phi must be positive and finite, got -1\.0"),
        ({"eps_A": 0.0}, r"eps_A must be positive and finite, got 0\.0"),
        ({"lam": -1.0}, r"lam must be positive and finite, got -1\.0"),
        ({"max_outer": 0}, "max_outer must be at least 1, got 0"),
        ({"max_inner": 0}, "max_inner must be at least 1, got 0"),
        ({"max_idle": 0}, "max_idle must be at least 1, got 0"),
        ({"max_gradients": 0}, "max_gradients must be positive, got 0"),
        ({"max_seconds": -1.0}, r"max_seconds must be positive, got -1\.0"),
        ({"nu": 1.5}, r"nu must be in \(0, 1\], got 1\.5"),
        ({"nu": 200.0}, r"nu must be in \(0, 1\], got 200\.0"),
        ({"nu": "a"}, "nu must be a number, got 'a'"),
        ({"nu": None}, "nu must be a number, got None"),
        ({"eps_phi": "1"}, "eps_phi must be a number, got '1'"),
        ({"lam": "1"}, "lam must be a number, got '1'"),
        ({"active_set": 1}, "active_set must be a bool, got 1"),
        ({"active_set": None}, "active_set must be a bool, got None"),
        ({"least_squares": 1}, "least_squares must be a bool, got 1"),
        ({"omega": 0.5}, r"omega must be at least 1 and finite, got 0\.5"),
        ({"beta_max": -1.0}, r"beta_max must be positive, got -1\.0"),
        ({"sufficient_decrease": 0.0}, r"sufficient_decrease must be None or in .*, got 0\.0"),
        ({"callback": 3}, "callback must be callable, got 3"),
        ({"sigma": "fast"}, "sigma must be 'penalty', 'paper', 'sqrt' or 'pi', got 'fast'"),
        ({"solver": solvers.PANOC}, "solver must be a solver or a function of beta, got <class"),
        ({"solver": "PANOC"}, "solver must be a solver or a function of beta, got 'PANOC'"),
        ({"x_1": vector(0, 0, torch.inf, 0)}, "x_1 must be finite, got inf"),
        ({"x_1": torch.arange(4)}, "x_1 must have a floating-point dtype, got torch.int64"),
        ({"x_1": [0.0]}, r"x_1 must be a tensor, got \[0\.0\]"),
        ({"x_1": vector()}, r"x_1 must have at least one entry, got shape \(0,\)"),
        ({"color": 1}, "unexpected keyword argument 'color'"),
    ],
)
def test_wrong_settings_raise_before_any_work(settings: dict[str, Any], message: str) -> None:
    settings, before = {"x_1": KNOWN.x_1, **settings}, replace(KNOWN.problem.oracle.calls)
    with pytest.raises((TypeError, ValueError), match=message):
        power_alm(KNOWN.problem, settings.pop("x_1"), **settings)
    assert KNOWN.problem.oracle.calls == before


STATE = {"y": vector(0, 0), "beta": 1.0, "k": 1, "start_norm": 1.0, "last_norm": 1.0, "tol": 1.0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"y_1": vector(1)}, r"y_1 must have shape \(2,\), got \(1,\)"),
        ({"y_1": vector(1, torch.nan)}, "y_1 must be finite, got nan"),
        ({"y_1": [0.0]}, r"y_1 must be a tensor, got \[0\.0\]"),
        ({"y_1": vector(0, 0), "state": STATE}, "y_1 must be None where state is given"),
        ({"state": {}}, r"state must be that of a Solution, got none of its \['y', 'beta'"),
        ({"state": {**STATE, "y": vector(1)}}, r"state must have y of shape \(2,\), got \(1,\)"),
        ({"state": {**STATE, "beta": math.nan}}, "must have a positive and finite beta, got nan"),
        ({"solver": lambda beta: None}, "solver must be a function of beta that returns a solver"),
    ],
)
def test_what_does_not_fit_the_problem_raises(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        power_alm(KNOWN.problem, KNOWN.x_1, **settings)


def test_something_else_than_a_problem_raises() -> None:
    with pytest.raises(TypeError, match="problem must be a Problem, got 3"):
        power_alm(3, KNOWN.x_1)  # type: ignore[arg-type]


def test_multipliers_of_inequalities_must_not_be_negative() -> None:
    known = PROBLEMS["active inequality"]
    with pytest.raises(ValueError, match=r"y_1 must be nonnegative for inequalities, got -1\.0"):
        power_alm(known.problem, known.x_1, y_1=vector(-1))


def test_residuals_of_a_multiplier_of_another_size_raise() -> None:
    with pytest.raises(ValueError, match="constraints have 2 entries, multiplier has 3"):
        KNOWN.problem.residuals(KNOWN.x_1, vector(1, 2, 3))
