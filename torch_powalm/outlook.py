"""How a run of the outer loop ends, seen from its residuals."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import torch

from torch_powalm.certificate import Certified
from torch_powalm.feasibility import Restored, is_stuck, restore
from torch_powalm.oracle import Calls
from torch_powalm.problem import Problem
from torch_powalm.result import DualRecord, Status

_PATIENCE = 30  # outer iterations without a better point until a run counts as stalled
_HASTE = 6  # how many of them one counts for in which the inner solver stalled
_GROWTH = 1e4  # growth of β that is waited for in any case, as long as it grows
_SUSPICION = 5  # outer iterations without a smaller violation until feasibility is looked into
_RESCUES = 8  # subproblems without a minimiser until the problem counts as unbounded
_BREAKDOWNS = 3  # subproblems in a row that end in values that are not finite


@dataclass
class Budget:
    """Gradient calls and seconds of one run.

    Args:
        calls: the counters, running since before the run.
        max_gradients: bound on gradient calls; None for none.
        max_seconds: bound on wall time; None for none.
    """

    calls: Calls
    max_gradients: int | None
    max_seconds: float | None
    start: float = field(default_factory=time.perf_counter)
    first: Calls = field(init=False)

    def __post_init__(self) -> None:
        self.first = Calls(self.calls.function, self.calls.gradient, self.calls.constraint)

    @property
    def spent(self) -> Calls:
        """Calls since the start."""
        now, first = self.calls, self.first
        return Calls(
            now.function - first.function,
            now.gradient - first.gradient,
            now.constraint - first.constraint,
        )

    @property
    def seconds(self) -> float:
        """Wall time since the start."""
        return time.perf_counter() - self.start

    def used_up(self) -> bool:
        """Whether one of the two is spent."""
        if self.max_gradients is not None:
            if self.calls.gradient - self.first.gradient >= self.max_gradients:
                return True
        return self.max_seconds is not None and self.seconds >= self.max_seconds


class Outlook:
    """Best point so far, and the signs that no better one will come.

    Args:
        problem: the problem.
        best: the point to begin with.
        beta: the first penalty.
        eps_phi: tolerance of the dual residual.
        eps_A: tolerance of the primal residual.
        max_inner: bound on the iterations of a search for a feasible point.
        budget: of the run, and of this search.
    """

    def __init__(
        self,
        problem: Problem,
        best: Certified,
        beta: float,
        eps_phi: float,
        eps_A: float,
        max_inner: int,
        budget: Budget,
    ) -> None:
        self.problem, self.best, self.budget = problem, best, budget
        self.eps_phi, self.eps_A, self.max_inner = eps_phi, eps_A, max_inner
        self.length = float(torch.linalg.vector_norm(best.x)) or 1.0  # of a typical x
        # The smallest merit but for that of the start, which a run may leave far behind before it
        # is as good again; iterations since, and β there.
        self.merit, self.idle, self.beta = math.inf, 0, beta
        self.violation, self.waiting = math.inf, 0  # the smallest, and iterations since
        self.suspicion = _SUSPICION
        self.breakdowns = 0  # in a row
        self.rescues = 0

    def see(self, point: Certified, step: DualRecord, beta: float, inner: Status) -> Status | None:
        """Take a new point into account; return how the run ends, None if it goes on.

        Args:
            point: the point.
            step: the update made there.
            beta: the penalty after it.
            inner: how the inner solver ended.
        """
        merit, best_merit = self._merit(point), self._merit(self.best)
        self.idle += _HASTE if inner is Status.STALLED else 1
        if not merit >= 0.99 * self.merit:
            self.merit, self.idle, self.beta = merit, 0, beta
        if not merit >= best_merit:
            self.best = point
        self.waiting += 1
        if point.residuals.primal < 0.9 * self.violation:
            self.violation, self.waiting = point.residuals.primal, 0

        self.breakdowns = self.breakdowns + 1 if inner is Status.NOT_FINITE else 0
        if merit <= 1:
            self.best = point
            return Status.CONVERGED
        if self.breakdowns == _BREAKDOWNS:
            return Status.NOT_FINITE
        if self.idle >= _PATIENCE and not step.beta < beta < _GROWTH * self.beta:
            return Status.STALLED
        return None

    def is_solution(self, point: Certified) -> bool:
        """Whether both tolerances hold."""
        return self._merit(point) <= 1

    def end(self, status: Status) -> Status:
        """How the run ends: converged where a bound was reached and the best point is good enough.

        The best point can be the start: subproblems lead away from it while y is wrong.
        """
        bounds = Status.STALLED, Status.MAX_OUTER, Status.BUDGET
        return Status.CONVERGED if status in bounds and self.is_solution(self.best) else status

    def see_divergence(self, point: Certified) -> Status | None:
        """Take into account that a subproblem had no minimiser and ended at a point far below."""
        self.rescues += 1
        if point.residuals.primal <= self.eps_A or self.rescues > _RESCUES:
            self.best = point
            return Status.UNBOUNDED
        return None

    def way_out(self, point: Certified) -> Restored | None:
        """Where an infeasible point leads that holds the run; None to go on from it.

        A point where the violation has no slope holds it for ever, since ∇ψ sees the constraints
        through this slope. Otherwise a search is made after some iterations without a smaller
        violation, and ever more patiently; it counts only if it ends at such a point. Nothing is
        done as long as the violation falls.
        """
        if point.residuals.primal <= self.eps_A or self.waiting == 0:
            return None
        stuck = is_stuck(self.problem, point.x, self.length)
        if not stuck:
            if self.waiting < self.suspicion:
                return None
            self.suspicion, self.waiting = 2 * self.suspicion, 0
        found = restore(
            self.problem, point.x, self.length, self.eps_A, self.max_inner, self.budget.used_up
        )
        return found if found is not None and (stuck or not found.feasible) else None

    def _merit(self, point: Certified) -> float:
        primal, dual = point.residuals.primal, point.residuals.dual
        if not (math.isfinite(primal) and math.isfinite(dual)):
            return math.inf  # max would pass over a nan
        return max(primal / self.eps_A, dual / self.eps_phi)
