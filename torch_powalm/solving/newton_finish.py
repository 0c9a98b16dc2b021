"""Last steps of a run with few unknowns: Newton steps for the optimality conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

import torch
from torch import Tensor

from torch_powalm.dual import DualState
from torch_powalm.solving.active_set import ActiveSetPath
from torch_powalm.solving.kkt_certificate import Certified
from torch_powalm.solving.oracle import Point
from torch_powalm.solving.penalty_model import Expansion
from torch_powalm.solving.problem import Problem
from torch_powalm.solving.settings import Tolerances
from torch_powalm.solving.subproblem import Subproblem, expansion

_STEPS = 8
_PROGRESS = 0.5  # largest factor of the residuals from one step to the next
_MARGIN = 1e-7  # rise of the Lagrangian that counts as rounding


class KnownLinearization:
    """The linearization of the optimality conditions with the curvature of the last subproblem.

    Args:
        at: first derivatives at the point.
        y: the multipliers.
        B: approximation of ∇²f + Σ y_i ∇²r_i.
        inequality: mask of the inequalities, None if there are none.
    """

    def __init__(self, at: Expansion, y: Tensor, B: Tensor, inequality: Tensor | None) -> None:
        self.flat, self.r, self.J, self.y = at.x, at.r, at.J, y
        self.v = at.grad_f + at.J.T @ y
        self.B = B
        self.inequality = torch.zeros_like(at.r, dtype=torch.bool)
        if inequality is not None:
            self.inequality = inequality
        self.eps = torch.finfo(at.x.dtype).eps

    def columns(self, variables: Sequence[int], upper: Tensor) -> Tensor:
        """Columns of B and J side by side."""
        return torch.cat((self.B[:, variables], self.J[:, variables]))

    def pull(self, w: Tensor) -> Tensor:
        """Jᵀw."""
        return self.J.T @ w


@torch.no_grad()
def newton_finish(
    problem: Problem,
    psi: Subproblem,
    start: Point,
    point: Certified,
    tolerances: Tolerances,
    stop: Callable[[], bool],
) -> Certified | None:
    """Find a solution near the end of a subproblem; None if the steps do not converge to one.

    A step leads to the solution of the linearized optimality conditions (`ActiveSetPath`) with the
    curvature that the subproblem has learned, and takes one evaluation. Steps go on while the
    residuals decrease fast. The end counts as a solution only if the augmented Lagrangian with its
    multipliers is no higher there than at the start, so that it is no maximum.

    Args:
        problem: the problem.
        psi: the subproblem, which knows the curvature.
        start: where it ended, evaluated.
        point: the same, certified.
        tolerances: of both residuals.
        stop: whether the budget of the run is used up.
    """
    curvature, y = psi.curvature, point.y
    at, _ = psi.expand(start.x)
    ratio = tolerances.ratio(point.residuals.primal, point.residuals.dual)
    for _ in range(_STEPS):
        if at is None or curvature is None or curvature.B is None or curvature.is_guess or stop():
            return None
        model = KnownLinearization(at, y, curvature.B, psi.dual.inequality)
        path = ActiveSetPath(model, curvature.lower, curvature.upper)
        matrix = path.follow()
        if matrix is None or not path.has_inertia(matrix):
            return None
        x, y = problem.g.prox(path.x.view_as(point.x), 1.0), path.y
        there = problem.oracle.at(x)
        v = there.gradient(y)
        residuals = problem.measure(there, y, v)
        last, ratio = ratio, tolerances.ratio(residuals.primal, residuals.dual)
        if ratio <= 1 and not _rises(psi.dual, y, start, there):
            return Certified(x, y, residuals, problem.objective(there), "active set")
        if not 1 < ratio <= _PROGRESS * last:
            return None
        old, at = at, expansion(there, v, y)
        if at is not None:
            curvature.learn(old, at, y, accepted=True)
    return None


def _rises(dual: DualState, y: Tensor, start: Point, end: Point) -> bool:
    """Whether the augmented Lagrangian with multipliers y is higher at the end."""
    dual = copy(dual)
    dual.load_state_dict({**dual.state_dict(), "y": y})
    before, after = (at.f + dual.value(at.r) for at in (start, end))
    return not after <= before + _MARGIN * (1 + abs(before))
