"""Feasibility restoration: minimize ‖(A, max(B, 0))‖ when an infeasible point traps the run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_powalm.result import Status
from torch_powalm.solvers import PANOC, run
from torch_powalm.solvers.model_newton import ModelNewton
from torch_powalm.solving.lagrangian_curvature import LagrangianCurvature, is_small
from torch_powalm.solving.problem import Problem
from torch_powalm.solving.subproblem import Subproblem
from torch_powalm.solving.termination import DescentMonitor
from torch_powalm.solving.violation_slope import (
    NOISE,
    Domain,
    half_square_dual,
    is_stuck,
    linear_decrease,
    neighbor,
    violation_and_grad,
)

_ACCURACIES = (1e-8, 1e-11, 1e-14)  # of a search, relative to the first gradient
_SETTLED = 1e-6  # decrease of ½‖v‖² by linearized constraints at which a search ends
_NEWTON = 200  # unknowns up to which Newton directions are used
_ELSEWHERE = (1e-3, 1.0, 10.0)  # distances of other starts from x_1, relative to a typical ‖x‖
_MOST = 12  # other starts where searches end with different violations,
_AGREE = 2  # and how many of them, not those close to x_1, must then end with the smallest one
_SAME = 0.01  # relative difference of violations that counts as none
_BRIEFLY = 300  # bound on the iterations of a search with Newton steps
_FIRST_WAIT = 5  # outer iterations without a smaller violation before the first search


class Restored(NamedTuple):
    """A point with a smaller violation: feasible, or else stationary for the violation."""

    x: Tensor
    feasible: bool
    violation: float = 0.0


class FeasibilityRestoration:
    """Detect that an infeasible point traps the run, and find a way out.

    Args:
        problem: the problem.
        x: the start, whose norm serves as that of a typical x.
        eps_A: violation at which a point counts as feasible.
        max_iter: bound on the iterations of each search.
        used_up: whether the budget of the run is used up.
    """

    def __init__(
        self,
        problem: Problem,
        x: Tensor,
        eps_A: float,
        max_iter: int,
        used_up: Callable[[], bool],
    ) -> None:
        self.problem, self.eps_A = problem, eps_A
        self.max_iter, self.used_up = max_iter, used_up
        self.x_norm = float(torch.linalg.vector_norm(x)) or 1.0
        self.violation, self.waiting = math.inf, 0  # smallest so far, and iterations since then
        self.longest_wait, self.searches = _FIRST_WAIT, 0
        self.x_1 = x

    def observe(self, violation: float) -> None:
        """Take the violation of the next outer iteration into account."""
        self.waiting += 1
        if violation < 0.9 * self.violation:
            self.violation, self.waiting = violation, 0

    def escape(self, x: Tensor, violation: float, *, grown: bool) -> Restored | None:
        """Where to go from an infeasible x that traps the run; None to continue from x.

        A point where the violation has no slope traps the run forever, because ∇ψ sees the
        constraints only through this slope. Elsewhere a search runs after several iterations
        without a smaller violation, then after twice as many, and so on; its result counts only if
        it is such a point. While the violation decreases, nothing is done. A point that is not
        feasible counts only after β has grown, and if a search from another point does not find a
        feasible one.

        Args:
            x: the point.
            violation: its violation.
            grown: whether β has grown by orders of magnitude.
        """
        if violation <= self.eps_A or self.waiting == 0:
            return None
        if self.searches > 0 and self.waiting < self.longest_wait:
            return None
        stuck = is_stuck(self.problem, x, self.x_norm)
        if not stuck and self.waiting < self.longest_wait:
            return None
        self.searches += 1
        self.longest_wait, self.waiting = 2 * self.longest_wait, 0
        found = self._restore(x)
        if found is None or found.feasible:
            return found if stuck else None
        return self._look_elsewhere(found) if grown else None

    def _look_elsewhere(self, found: Restored) -> Restored | None:
        """A feasible point from another start, or the least violation on which searches agree.

        None if no other search ends with it. Where searches end with different violations, more of
        them must agree: each is then only a local minimum.
        """
        differ, near, far = False, 0, 0
        for seed in range(1, _MOST + 1):
            if seed > len(_ELSEWHERE) and (not differ or far >= _AGREE):
                break
            distance = _ELSEWHERE[(seed - 1) % len(_ELSEWHERE)]
            start = neighbor(self.problem.g, self.x_1, distance * self.x_norm, seed=seed)
            again = self._restore(start)
            if again is not None and again.feasible:
                return again
            if self.used_up():
                return None
            if again is None:  # a search that found nothing shows nothing
                continue
            if again.violation < (1 - _SAME) * found.violation:
                found, differ, near, far = again, True, 0, 0
            elif again.violation > (1 + _SAME) * found.violation:
                differ = True
            elif distance == _ELSEWHERE[0]:
                near += 1
            else:
                far += 1
        return found if far >= _AGREE or (near + far > 0 and not differ) else None

    def _restore(self, x: Tensor) -> Restored | None:
        return restore(self.problem, x, self.x_norm, self.eps_A, self.max_iter, self.used_up)


@torch.no_grad()
def restore(
    problem: Problem,
    x: Tensor,
    x_norm: float,
    eps_A: float,
    max_iter: int,
    used_up: Callable[[], bool] = lambda: False,
) -> Restored | None:
    """Minimize the violation alone; None if neither a feasible nor a stationary point is found.

    The search starts at a neighbor of x, so that it does not stop at a saddle point.
    """
    start = neighbor(problem.g, x, NOISE * x_norm)
    half_square, domain = _HalfSquare(problem, start), Domain(problem.g)
    _, grad = half_square.value_and_grad(start)
    grad_norm = float(torch.linalg.vector_norm(grad))
    if math.isnan(grad_norm):
        return None
    known = is_small(problem.g, start, sum(problem.oracle.sizes or ()))
    psi = _modeled(problem, start, half_square) if known else half_square
    accuracies = _ACCURACIES if known else _ACCURACIES[:1]
    for accuracy in accuracies:
        result = run(
            ModelNewton() if known else PANOC(),
            psi,
            problem.g if known else domain,
            start,
            tol=min(accuracy * grad_norm, 1e300) or 1e-300,
            max_iter=min(max_iter, _BRIEFLY) if known else max_iter,
            stop=lambda: half_square.lowest <= 0.5 * eps_A**2 or used_up(),
        )
        # A trial point may have stopped the run; it need not be in dom g.
        for point in result.x, problem.g.prox(half_square.best, torch.finfo(x.dtype).eps):
            if math.sqrt(2 * half_square.value(point)) <= eps_A:
                return Restored(point, feasible=True)
        if used_up():
            return None  # a search that was cut short shows nothing
        start = result.x
        settled = linear_decrease(problem, start, x_norm) <= _SETTLED
        if settled or result.status is not Status.CONVERGED:
            break
    if not is_stuck(problem, start, x_norm):
        return None
    return Restored(start, feasible=False, violation=violation_and_grad(problem, start)[0])


class _HalfSquare(DescentMonitor):
    """½‖(A(x), max(B(x), 0))‖², its smallest value so far and the point of that value."""

    def __init__(self, problem: Problem, x: Tensor) -> None:
        super().__init__(is_bounded=True)
        self.problem = problem
        self.lowest, self.best = math.inf, x

    def value(self, x: Tensor) -> float:
        return self.value_and_grad(x)[0]

    def value_and_grad(self, x: Tensor) -> tuple[float, Tensor]:
        v_norm, grad = violation_and_grad(self.problem, x)
        value = 0.5 * v_norm**2 if v_norm < 1e150 else math.inf
        if value < self.lowest:
            self.lowest, self.best = value, x
        return value, grad

    def observe(self, x: Any, psi_x: float, f_x: float) -> None:
        """Take an evaluation of the modeled function into account."""
        if psi_x < self.lowest:
            self.lowest, self.best = psi_x, x


def _modeled(problem: Problem, x: Tensor, half_square: _HalfSquare) -> Subproblem:
    """½‖(A, max(B, 0))‖² as the subproblem of no objective with y = 0 and β = 1."""
    alone = problem.without_objective()
    at = alone.oracle.at(x)
    dual = half_square_dual(problem, at)
    return Subproblem(alone, dual, at, half_square, LagrangianCurvature(alone, x))
