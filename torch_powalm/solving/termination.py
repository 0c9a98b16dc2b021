"""Every rule that stops a subproblem or ends a run."""

from __future__ import annotations

import math

import torch

from torch_powalm.prox import Bounded, Proximable
from torch_powalm.result import DualRecord, InnerResult, Status
from torch_powalm.solving.budget import Budget
from torch_powalm.solving.kkt_certificate import Certified
from torch_powalm.solving.settings import Limits, Tolerances

# Relative decrease of ψ that counts as progress. An automatic tolerance is only as tight as the
# current point needs, so a slower descent is not worth its evaluations; λ/β can be far tighter.
DECREASE_AUTOMATIC = 1e-9
DECREASE_GIVEN_LAM = 1e-12
_UNBOUNDED = 1e12  # decrease of ψ, relative to a typical value of f, that shows it is unbounded

_PATIENCE = 30  # outer iterations without a better point after which a run counts as stalled
_STALLED_COST = 6  # how many of those one iteration counts for if its inner solver stalled
_GROWTH = 1e4  # while β still grows, a run does not stall before β has grown by this factor
_MAX_UNBOUNDED = 8  # unbounded subproblems, none at a feasible point, after which a run stalls
_MAX_BREAKDOWNS = 3  # consecutive subproblems that end in values that are not finite


class DescentMonitor:
    """Watch the values of ψ in one subproblem: do they still decrease, and are they bounded below?

    Args:
        decrease: relative decrease of ψ that counts as progress.
        max_idle: bound on evaluations without progress; None for no bound.
        is_bounded: whether ψ is known to be bounded below.
        typical: a typical change of f; its first value counts, too.
    """

    def __init__(
        self,
        decrease: float = DECREASE_AUTOMATIC,
        max_idle: int | None = None,
        is_bounded: bool = False,
        typical: float = 1.0,
    ) -> None:
        self.is_bounded, self.typical = is_bounded, typical
        self.decrease, self.max_idle = decrease, math.inf if max_idle is None else max_idle
        self._floor = math.nan  # a ψ with a smaller value has no minimizer
        self._lowest = math.inf  # smallest value, ignoring decreases too small to count
        self._idle = 0  # evaluations since then

    def observe(self, x: object, psi_x: float, f_x: float) -> None:
        """Take the next evaluation into account."""
        if math.isnan(self._floor):
            self._floor = -_UNBOUNDED * max(1.0, abs(f_x), self.typical)
        self._idle += 1
        if psi_x < self._lowest - self.decrease * (1.0 + abs(psi_x)):
            self._lowest, self._idle = psi_x, 0

    def is_low(self, psi_x: float) -> bool:
        """Whether only a function without a minimizer has such a value."""
        return psi_x < self._floor and not self.is_bounded

    def is_unbounded(self) -> bool:
        """Whether ψ has reached such a value."""
        return self.is_low(self._lowest)

    def is_idle(self) -> bool:
        """Whether the last max_idle evaluations have not decreased ψ."""
        return self._idle >= self.max_idle


class Termination:
    """Decide when and with which status a run ends, and keep its best point.

    Args:
        start: the start, certified.
        beta: first penalty.
        decrease: relative decrease of ψ that counts as progress.
        tolerances: when a point counts as a solution.
        limits: how much work the run may do.
        budget: what the run has spent.
        is_bounded: whether x is confined to a bounded set.
        typical: a typical change of f.
    """

    def __init__(
        self,
        start: Certified,
        beta: float,
        decrease: float,
        tolerances: Tolerances,
        limits: Limits,
        budget: Budget,
        is_bounded: bool = False,
        typical: float = 1.0,
    ) -> None:
        self.is_bounded, self.typical = is_bounded, typical
        self.status: Status | None = None  # None while the run goes on
        self.best = start
        self.tolerances, self.limits, self.budget = tolerances, limits, budget
        self.decrease, self.monitor = decrease, DescentMonitor()
        # Smallest ratio of residuals to tolerances since the start, the iterations since then, and
        # β there. The start is left out: a run may move far away before it is as good again.
        self._ratio, self._idle, self._beta = math.inf, 0, beta
        self._breakdowns = 0  # in a row
        self._unbounded = 0

    def monitor_subproblem(self) -> DescentMonitor:
        """Return the monitor of a new subproblem."""
        self.monitor = DescentMonitor(
            self.decrease, self.limits.max_idle, self.is_bounded, self.typical
        )
        return self.monitor

    def stops_subproblem(self) -> bool:
        """Whether the inner solver must stop: no progress, ψ unbounded, or no budget left."""
        return self.monitor.is_idle() or self.monitor.is_unbounded() or self.budget.used_up()

    def inner_status(self, inner: InnerResult) -> Status:
        """How the inner solver ended; if it was told to stop, the reason for that."""
        if inner.status is not Status.BUDGET:
            return inner.status
        if self.monitor.is_unbounded():
            return Status.UNBOUNDED
        return Status.STALLED if self.monitor.is_idle() else Status.BUDGET

    def observe(self, point: Certified, step: DualRecord, beta: float, inner: Status) -> None:
        """Take an outer iteration into account.

        Args:
            point: where its subproblem ended.
            step: the multiplier update at this point.
            beta: the penalty after the update.
            inner: how the inner solver ended.
        """
        ratio, best_ratio = self._ratio_of(point), self._ratio_of(self.best)
        self._idle += _STALLED_COST if inner is Status.STALLED else 1
        if not ratio >= 0.99 * self._ratio:
            self._ratio, self._idle, self._beta = ratio, 0, beta
        if not ratio >= best_ratio:
            self.best = point
        self._breakdowns = self._breakdowns + 1 if inner is Status.NOT_FINITE else 0
        if ratio <= 1:
            self.end(Status.CONVERGED, point)
        elif self._breakdowns == _MAX_BREAKDOWNS:
            self.end(Status.NOT_FINITE)
        elif self._idle >= _PATIENCE and not step.beta < beta < _GROWTH * self._beta:
            self.end(Status.STALLED)

    def observe_unbounded(self, point: Certified) -> None:
        """Take into account an iteration whose subproblem had no minimizer."""
        self._unbounded += 1
        if point.residuals.primal <= self.tolerances.eps_A:
            self.end(Status.UNBOUNDED, point)
        elif self._unbounded > _MAX_UNBOUNDED:
            self.end(Status.STALLED)

    def check_limits(self, iterations: int) -> None:
        """End the run if its budget or its outer iterations are used up."""
        if self.budget.used_up():
            self.end(Status.BUDGET)
        if iterations >= self.limits.max_outer:
            self.end(Status.MAX_OUTER)

    def end(self, status: Status, point: Certified | None = None) -> None:
        """End the run, at the given point or else at the best one, unless it has already ended."""
        if self.status is None:
            self.status = status
            self.best = point or self.best

    def is_solution(self, point: Certified) -> bool:
        """Whether both residuals are within their tolerances."""
        return self._ratio_of(point) <= 1

    def final_status(self) -> Status:
        """Status of the run: CONVERGED if it hit a limit but its best point is a solution.

        The best point can be the start: subproblems lead away from it while y is wrong.
        """
        status = self.status or Status.INTERRUPTED
        hit_limit = status in (Status.STALLED, Status.MAX_OUTER, Status.BUDGET)
        return Status.CONVERGED if hit_limit and self.is_solution(self.best) else status

    def _ratio_of(self, point: Certified) -> float:
        return self.tolerances.ratio(point.residuals.primal, point.residuals.dual)


def is_bounded(g: Proximable) -> bool:
    """Whether g is a box with finite bounds, on which no continuous f is unbounded."""
    if not (isinstance(g, Bounded) and isinstance(g.bounds, tuple)):
        return False
    return all(bool(torch.as_tensor(bound).isfinite().all()) for bound in g.bounds)
