"""Least-squares multipliers: the y for which a given point is closest to stationary."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_powalm.prox import Box
from torch_powalm.solvers import PANOC, run
from torch_powalm.solving.box_newton import minimize_on_box
from torch_powalm.solving.lagrangian_curvature import bounds_of, is_small
from torch_powalm.solving.oracle import Point
from torch_powalm.solving.problem import Problem

_ITERATIONS = 50  # must not cost more than finding the point did,
_ITERATIONS_FAR = 10  # and less if the first guess misses the tolerance
_FAR = 100.0  # by this factor
_ENOUGH = 0.5  # of the tolerance: the search stops
_LARGEST = 500  # constraints with a multiplier up to which a dense matrix of their products pays


@torch.no_grad()
def least_squares_multipliers(
    problem: Problem, at: Point, y: Tensor, dual_residual: float, tol: float
) -> Tensor:
    """Minimize dist(−∇f(x) − Jᵀy, ∂g(x)) over y from a first guess, with y ≥ 0 for inequalities.

    Args:
        problem: the problem.
        at: the point, in dom g, evaluated.
        y: the guess; inequalities with y_i = 0 stay at 0.
        dual_residual: the distance for this guess.
        tol: a distance that is small enough.
    """
    x = at.x
    lower, upper = torch.full_like(y, -math.inf), torch.full_like(y, math.inf)
    inequality = problem.inequality(at)
    if inequality is not None:
        lower[inequality] = 0.0
        upper[inequality & (y <= 0)] = 0.0
    if is_small(problem.g, x, len(y)):
        return _dense(problem, at, lower, upper, y)
    distance = _Distance(problem, x, at.gradient(torch.zeros_like(y)))
    J_scale = distance.slope(y)
    if not math.isfinite(J_scale):
        return y
    return run(
        PANOC(),
        distance,
        Box(lower, upper),
        y,
        tol=1e-2 * tol * J_scale,
        max_iter=_ITERATIONS if dual_residual <= _FAR * tol else _ITERATIONS_FAR,
        stop=lambda: distance.smallest <= _ENOUGH * tol,
    ).x


def _dense(problem: Problem, at: Point, lower: Tensor, upper: Tensor, y: Tensor) -> Tensor:
    """The same by Newton steps with the Jacobian of the constraints whose y may move."""
    rows = lower < upper
    squares = _DenseDistance(problem, at, rows)
    if int(rows.sum()) > _LARGEST or not squares.J.isfinite().all():
        return y
    best = y.clone()
    best[rows] = minimize_on_box(squares, y[rows], lower[rows], upper[rows])[0]
    return best


class _DenseDistance:
    """½ dist(−v, ∂g(x))² for a box, where v = ∇f(x) + Jᵀy."""

    def __init__(self, problem: Problem, at: Point, rows: Tensor) -> None:
        x = at.x.reshape(-1)
        low, high = bounds_of(problem.g, at.x)
        self.J = at.jacobian()[rows]
        self.grad_f = at.gradient(at.r.new_zeros(len(at.r))).reshape(-1)
        # What of v counts: all of it off the bounds, one sign at a bound, nothing if x_i is fixed.
        self.negative, self.positive = x < high, x > low
        self.counts = torch.ones_like(x, dtype=torch.bool)

    def value_and_grad(self, y: Tensor) -> tuple[float, Tensor]:
        v = torch.addmv(self.grad_f, self.J.T, y)
        self.counts = torch.where(v < 0, self.negative, self.positive)
        v = torch.where(self.counts, v, 0.0)
        return 0.5 * torch.dot(v, v).item(), torch.mv(self.J, v)

    def hessian(self, y: Tensor) -> Tensor:
        J = self.J[:, self.counts]
        return J @ J.T


class _Distance:
    """½ dist(−v, ∂g(x))² as a function of y, where v = ∇f(x) + Jᵀy.

    Its gradient is J d, where d is the shortest vector in v + ∂g(x). The prox gives d as the limit
    of (x − prox_{tg}(x − tv))/t for t → 0, and J d is a finite difference of the constraints, so
    neither needs oracles that a solver does not use.
    """

    def __init__(self, problem: Problem, x: Tensor, grad_f: Tensor) -> None:
        self.problem, self.x, self.grad_f = problem, x, grad_f
        self.x_norm = float(torch.linalg.vector_norm(x)) or 1.0
        self.smallest = math.inf  # smallest distance so far

    def slope(self, y: Tensor) -> float:
        """‖Jᵀu‖ for the unit vector u along y; 1 if it vanishes."""
        u = y / torch.linalg.vector_norm(y) if y.any() else torch.ones_like(y) / len(y) ** 0.5
        at = self.problem.oracle.at(self.x, objective=False)
        return float(torch.linalg.vector_norm(at.gradient(u))) or 1.0

    def value(self, y: Tensor) -> float:
        return self.value_and_grad(y)[0]

    def value_and_grad(self, y: Tensor) -> tuple[float, Tensor]:
        oracle, x, g = self.problem.oracle, self.x, self.problem.g
        v = self.grad_f + oracle.at(x, objective=False).gradient(y)
        v_norm = float(torch.linalg.vector_norm(v))
        if v_norm == 0 or not math.isfinite(v_norm):
            return 0.5 * v_norm**2, torch.zeros_like(y)
        t = 1e-6 * self.x_norm / v_norm
        d = (x - g.prox(x - t * v, t)) / t
        d_norm = float(torch.linalg.vector_norm(d))
        self.smallest = min(self.smallest, d_norm)
        h = 1e-6 * self.x_norm / (d_norm or 1.0)
        ahead, behind = (oracle.at(x + s * d, objective=False).r for s in (h, -h))
        return 0.5 * d_norm**2, (ahead - behind) / (2 * h)
