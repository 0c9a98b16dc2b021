"""The certificate of a point: multipliers and the residuals they leave, measured anew."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from torch_powalm.dual import DualState
from torch_powalm.multipliers import least_squares_multipliers
from torch_powalm.oracle import Point
from torch_powalm.problem import Problem
from torch_powalm.result import Residuals


class Certified(NamedTuple):
    """A point with its multipliers y, and where these come from."""

    x: Tensor
    y: Tensor
    residuals: Residuals
    objective: float
    multiplier: str


def certify(
    problem: Problem, dual: DualState, at: Point, eps_phi: float, eps_A: float
) -> Certified:
    """Measure a point with ŷ = y + β∇φ, and where that alone fails, with least squares."""
    y, multiplier = dual.weight(at.r), "weight"
    if y is None:
        y = dual.y
    residuals = problem.measure(at, y)
    if residuals.primal <= eps_A and residuals.dual > eps_phi:
        y_other = least_squares_multipliers(problem, at.x, y, residuals.dual, eps_phi)
        other = problem.residuals(at.x, y_other)
        if other.dual < residuals.dual:
            y, residuals, multiplier = y_other, other, "least squares"
    return Certified(at.x, y, residuals, at.f + problem.g.value(at.x), multiplier)
