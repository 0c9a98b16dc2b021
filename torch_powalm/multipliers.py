"""Least-squares multipliers: the y that makes a given point as stationary as it can be."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_powalm.problem import Problem
from torch_powalm.prox import Box
from torch_powalm.result import Status
from torch_powalm.solvers import PANOC, run

_ITERATIONS = 50  # a second opinion may not cost more than the search for the point,
_FEW = 10  # and less where the first one
_FAR = 100.0  # is so many times larger than what is asked for
_ENOUGH = 0.5  # of what is asked for: the search for better multipliers ends


@torch.no_grad()
def least_squares_multipliers(
    problem: Problem, x: Tensor, y: Tensor, dual_residual: float, tol: float
) -> Tensor:
    """Lower dist(−∇f(x) − Jᵀy, ∂g(x)) over y from a first guess, y ≥ 0 for inequalities.

    Args:
        problem: the problem.
        x: the point, in dom g.
        y: the guess; inequalities with y_i = 0 keep it.
        dual_residual: the distance with this guess.
        tol: a distance that is small enough.
    """
    at = problem.oracle.at(x)
    lower, upper = torch.full_like(y, -math.inf), torch.full_like(y, math.inf)
    inequality = problem.inequality(at)
    if inequality is not None:
        lower[inequality] = 0.0
        upper[inequality & (y <= 0)] = 0.0
    distance = _Distance(problem, x, at.gradient(torch.zeros_like(y)))
    J_scale = distance.slope(y)
    iterations = _ITERATIONS if dual_residual <= _FAR * tol else _FEW
    result = run(
        PANOC(),
        distance,
        Box(lower, upper),
        y,
        tol=1e-2 * tol * J_scale,
        max_iter=iterations,
        stop=lambda: distance.least <= _ENOUGH * tol,
    )
    if result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    return result.x


class _Distance:
    """½ dist(−v, ∂g(x))² as a function of y, v = ∇f(x) + Jᵀy.

    Its gradient is J d with d the shortest vector of v + ∂g(x). The prox knows d: it is the limit
    of (x − prox_{tg}(x − tv))/t as t falls to 0. J d is a difference of constraints, so neither
    needs more of the oracles than a solver does.
    """

    def __init__(self, problem: Problem, x: Tensor, grad_f: Tensor) -> None:
        self.problem, self.x, self.grad_f = problem, x, grad_f
        self.length = float(torch.linalg.vector_norm(x)) or 1.0
        self.least = math.inf  # the smallest distance seen

    def slope(self, y: Tensor) -> float:
        """‖Jᵀu‖ for the unit vector u along y, 1 where that is 0."""
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
        t = 1e-6 * self.length / v_norm
        d = (x - g.prox(x - t * v, t)) / t
        d_norm = float(torch.linalg.vector_norm(d))
        self.least = min(self.least, d_norm)
        h = 1e-6 * self.length / (d_norm or 1.0)
        ahead, behind = (oracle.at(x + s * d, objective=False).r for s in (h, -h))
        return 0.5 * d_norm**2, (ahead - behind) / (2 * h)
