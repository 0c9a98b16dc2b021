"""The certificate of a point: multipliers, and the residuals measured with them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from torch_powalm.dual import DualState
from torch_powalm.result import Residuals
from torch_powalm.solving.least_squares_multipliers import least_squares_multipliers
from torch_powalm.solving.oracle import Point
from torch_powalm.solving.problem import Problem
from torch_powalm.solving.settings import Tolerances


class Certified(NamedTuple):
    """A point with multipliers, its residuals and its objective.

    Args:
        x: the point.
        y: the multipliers, in the units of the run.
        residuals: of (x, y).
        objective: f(x) + g(x).
        multiplier: source of y: "weight", "least squares" or "active set".
    """

    x: Tensor
    y: Tensor
    residuals: Residuals
    objective: float
    multiplier: str


def certify(problem: Problem, dual: DualState, at: Point) -> Certified:
    """Measure a point with ŷ = y + β∇φ(r), or with y if ŷ is not finite."""
    y = dual.weight(at.r)
    if y is None:
        y = dual.y
    return Certified(at.x, y, problem.measure(at, y), problem.objective(at), "weight")


def improve_multipliers(
    problem: Problem, point: Certified, tolerances: Tolerances, at: Point
) -> Certified:
    """Try least-squares multipliers if the point is feasible but not stationary with its own.

    Args:
        problem: the problem.
        point: the point.
        tolerances: when it counts as a solution.
        at: its values.
    """
    eps_phi, eps_A = tolerances
    residuals = point.residuals
    if not (len(point.y) and residuals.primal <= eps_A and residuals.dual > eps_phi):
        return point
    s = problem.f_scale
    y = least_squares_multipliers(problem, at, point.y, s * residuals.dual, s * eps_phi)
    improved = problem.measure(at, y)
    if not improved.dual < residuals.dual:
        return point
    return point._replace(y=y, residuals=improved, multiplier="least squares")
