"""OuterLoop: one outer iteration after the other, from the subproblem to the updated multiplier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch_powalm.active_set import finish
from torch_powalm.certificate import Certified, certify
from torch_powalm.dual import DualState
from torch_powalm.oracle import Point
from torch_powalm.outlook import Budget, Outlook
from torch_powalm.problem import Problem, Subproblem
from torch_powalm.result import DualRecord, InnerResult, OuterRecord, Records, Solution, Status
from torch_powalm.solvers import PANOC, Solver, run
from torch_powalm.tolerance import Tolerance

_FALLS = 1e-9, 1e-12  # of ψ that count as progress: with a tolerance of ours, with the user's λ
_RESCUE = 100.0  # growth of β after a subproblem without a minimiser


class OuterLoop:
    """A run of Algorithm 1 between two outer iterations: x, y and β, records, and how it ends.

    Args:
        problem: f, g and the constraints.
        dual: y and β, started.
        at: the start, evaluated.
        solver: inner solver, or a function of β that returns one; None for PANOC.
        lam: factor λ of the inner tolerance; None for a tolerance of its own.
        eps_phi: tolerance of the dual residual.
        eps_A: tolerance of the primal residual.
        max_inner: bound on the iterations of each subproblem.
        max_idle: bound on evaluations of a subproblem that hardly decrease it; None for none.
        budget: calls and time of the whole run.
    """

    def __init__(
        self,
        problem: Problem,
        dual: DualState,
        at: Point,
        solver: Solver | Callable[[float], Solver] | None,
        lam: float | None,
        eps_phi: float,
        eps_A: float,
        max_inner: int,
        max_idle: int | None,
        budget: Budget,
    ) -> None:
        self.problem, self.dual, self.at = problem, dual, at
        self.solver, self.fall = solver, _FALLS[lam is not None]
        self.eps_phi, self.eps_A = eps_phi, eps_A
        self.max_inner, self.max_idle, self.budget = max_inner, max_idle, budget
        self.point = self._certify(at)  # the last one measured
        self.tolerance = Tolerance(lam, dual, self.point.residuals.stationarity, eps_phi)
        self.outlook = Outlook(problem, self.point, dual.beta, eps_phi, eps_A, max_inner, budget)
        self.records = Records()
        self.status: Status | None = None  # None while it goes on

    def advance(self) -> OuterRecord:
        """Solve the subproblem, measure the point it gives, update y and β there."""
        dual = self.dual
        psi = Subproblem(self.problem, dual, self.at, fall=self.fall, max_idle=self.max_idle)
        inner = self._solve(psi)
        at = self.problem.oracle.at(inner.x)
        self.point = self._certify(at)
        interrupted = inner.status is Status.INTERRUPTED
        if psi.falls_forever():
            step = dual.update(at.r, hold=_RESCUE)
            self.status = self.outlook.see_divergence(self.point)
        else:
            interrupted = interrupted or self._finish(inner)
            self.at = at
            violation = max(self.point.residuals.primal, dual.residual_norm(at.r)) / self.eps_A
            step = dual.update(at.r, hold=self.tolerance.hold(violation, inner, dual.nu))
            self.status = self.outlook.see(self.point, step, dual.beta, inner.status)
        if interrupted:
            self.end(Status.INTERRUPTED)
        self.tolerance.follow(dual)
        self.records.append(_record(step, self.point, inner, self.budget))
        return self.records[-1]

    def leave_a_trap(self) -> None:
        """Go on from a feasible point where an infeasible one holds the run, or end it there."""
        if self.status is not None or (way := self.outlook.way_out(self.point)) is None:
            return
        self.at = self.problem.oracle.at(way.x)
        if not way.feasible:
            self.end(Status.INFEASIBLE)
            self.outlook.best = self._certify(self.at)

    def end(self, status: Status) -> None:
        """End with a status, unless it has ended already."""
        self.status = self.status or status

    def solution(self) -> Solution:
        """The best point, its certificate, and all that was spent."""
        best, spent = self.outlook.best, self.budget.spent
        return Solution(
            x=best.x,
            y=best.y,
            status=self.outlook.end(self.status or Status.INTERRUPTED),
            residuals=best.residuals,
            objective=best.objective,
            records=self.records,
            function_calls=spent.function,
            gradient_calls=spent.gradient,
            constraint_calls=spent.constraint,
            seconds=self.budget.seconds,
            state={"x": self.at.x, "tol": self.tolerance.value, **self.dual.state_dict()},
        )

    def _solve(self, psi: Subproblem) -> InnerResult:
        inner = run(
            _at_penalty(self.solver, self.dual.beta),
            psi,
            self.problem.g,
            self.at.x,
            tol=self.tolerance.value,
            max_iter=self.max_inner,
            stop=lambda: psi.has_failed() or self.budget.used_up(),
        )
        return replace(inner, status=Status.STALLED) if psi.starves() else inner

    def _finish(self, inner: InnerResult) -> bool:
        """Take a solution near the point instead, if a short search finds one; True after Ctrl-C.

        The search is no longer than the last one. With the user's λ the run is Algorithm 1 as it
        stands, without this.
        """
        if self.tolerance.lam is not None or self.outlook.is_solution(self.point):
            return False
        try:
            found = finish(
                self.problem,
                self.point,
                self.eps_phi,
                self.eps_A,
                max_columns=inner.iterations,
                stop=self.budget.used_up,
            )
        except KeyboardInterrupt:
            return True
        self.point = found or self.point
        return False

    def _certify(self, at: Point) -> Certified:
        return certify(self.problem, self.dual, at, self.eps_phi, self.eps_A)


def _at_penalty(solver: Solver | Callable[[float], Solver] | None, beta: float) -> Solver:
    if solver is None:
        return PANOC()
    if hasattr(solver, "iterate"):
        return solver
    found = solver(beta)
    if not hasattr(found, "iterate"):
        raise TypeError(f"solver must be a function of beta that returns a solver, got {found!r}")
    return found


def _record(step: DualRecord, point: Certified, inner: InnerResult, budget: Budget) -> OuterRecord:
    spent = budget.spent
    return OuterRecord(
        k=step.k,
        primal_residual=point.residuals.primal,
        dual_residual=point.residuals.dual,
        objective=point.objective,
        beta=step.beta,
        sigma=step.sigma,
        y_norm=step.y_norm,
        inner_iterations=inner.iterations,
        inner_status=inner.status,
        function_calls=spent.function,
        gradient_calls=spent.gradient,
        seconds=budget.seconds,
        multiplier=point.multiplier,
    )
