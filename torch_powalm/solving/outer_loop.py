"""OuterLoop: the steps of one outer iteration, and what a run carries from one to the next."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch_powalm.dual import DualState
from torch_powalm.functional import norm, phi, violation
from torch_powalm.result import OuterRecord, Records, Solution, Status
from torch_powalm.solvers.base import PATIENCE, InnerRun
from torch_powalm.solvers.model_newton import ModelNewton
from torch_powalm.solving.active_set import finish
from torch_powalm.solving.budget import Budget, BudgetUsedUpError
from torch_powalm.solving.current_iteration import CurrentIteration, Solved, move
from torch_powalm.solving.feasibility_restoration import FeasibilityRestoration
from torch_powalm.solving.final_solution import final_solution
from torch_powalm.solving.gradient_scaling import Scales
from torch_powalm.solving.inner_tolerance import inner_tolerance
from torch_powalm.solving.kkt_certificate import Certified, certify, improve_multipliers
from torch_powalm.solving.lagrangian_curvature import LagrangianCurvature, is_small
from torch_powalm.solving.newton_finish import newton_finish
from torch_powalm.solving.oracle import Point
from torch_powalm.solving.outer_record import outer_record
from torch_powalm.solving.problem import Problem
from torch_powalm.solving.settings import Settings, solver_at
from torch_powalm.solving.subproblem import Subproblem
from torch_powalm.solving.termination import Termination, is_bounded

_GROWN = 100.0  # growth of β before a problem counts as infeasible
_BARRIER = 10.0  # penalty of an infeasible trap, relative to the rise of f from there
_NEWTON_GROWTH = 10.0  # default ω where steps know the penalty and do not mind a stiff one,
_NEWTON_DECREASE = 0.1  # applied if the violation has not decreased to this fraction
_UNBOUNDED_GROWTH = 100.0  # growth of β after a subproblem without a minimizer


class OuterLoop:
    """A run of Algorithm 1: x, y and β, the records so far, and the rules that end it.

    Args:
        problem: f, g and the constraints.
        original: the same in the user's units.
        dual: y and β, started.
        at: the start, evaluated.
        settings: tolerances, limits, inner solver, and which rules apply.
        budget: calls and seconds spent by the run.
        scales: how `problem` was scaled; None if it was not.
        state: `Solution.state` of a run to continue; None for a new run.
    """

    def __init__(
        self,
        problem: Problem,
        original: Problem,
        dual: DualState,
        at: Point,
        settings: Settings,
        budget: Budget,
        scales: Scales | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self.problem, self.original, self.dual, self.at = problem, original, dual, at
        self.settings, self.budget, self.scales = settings, budget, scales
        (tolerances, limits), start = settings[:2], self._certified(at)
        small = settings.solver is None and is_small(problem.g, at.x, len(at.r))
        self.curvature = LagrangianCurvature(problem, at.x) if small else None
        if small and settings.default_growth:
            dual.omega, dual.sufficient_decrease = _NEWTON_GROWTH, _NEWTON_DECREASE
        self.tolerance = inner_tolerance(
            settings.lam,
            dual,
            problem.f_scale * start.residuals.stationarity,
            problem.f_scale * tolerances.eps_phi,
            newton=small,
        )
        self.termination = Termination(
            start,
            dual.beta,
            self.tolerance.decrease,
            tolerances,
            limits,
            budget,
            is_bounded=is_bounded(problem.g),
            typical=problem.f_scale * start.residuals.stationarity * max(1.0, norm(at.x)),
        )
        self.restoration = FeasibilityRestoration(
            original, at.x, tolerances.eps_A, limits.max_inner, budget.used_up
        )
        self.point = start  # the last one certified
        self.records = Records()
        if state is not None:
            self.tolerance.value = state["tol"]
            if self.curvature is not None and state.get("curvature") is not None:
                self.curvature.load_state_dict(state["curvature"])
        self.interruption: Status | None = None  # why the current iteration is the last one
        self._current = CurrentIteration()

    @property
    def status(self) -> Status | None:
        """How the run ended, None while it goes on."""
        return self.termination.status

    def solve_subproblem(self) -> Solved:
        """Step 1: minimize ψ + g up to the inner tolerance, and evaluate the point reached."""
        known = self._current
        if known.psi is None or known.run is None:
            known.psi = Subproblem(
                self.problem,
                self.dual,
                self.at,
                self.termination.monitor_subproblem(),
                self.curvature,
            )
            self.tolerance.begin(known.psi, self.problem.g, self.at.x)
            known.run = InnerRun(
                ModelNewton() if self.curvature else solver_at(self.settings, self.dual.beta),
                known.psi,
                self.problem.g,
                self.at.x,
                tol=self.tolerance.value,
                max_iter=self.settings.limits.max_inner,
                stop=self.termination.stops_subproblem,
                patience=math.inf if self.settings.limits.max_idle is None else PATIENCE,
            )
        if known.solved is None:
            inner = known.run.result() if self.interruption else known.run.finish()
            inner = replace(inner, status=self.termination.inner_status(inner))
            known.solved = Solved(inner, known.psi.point(inner.x))
        return known.solved

    def certify(self, solved: Solved) -> Certified:
        """Measure the point with ŷ = y + β∇φ(r), then look for better multipliers or a solution.

        Where g is a box and few variables are off their bounds, the active-set method looks for a
        solution nearby, with no more evaluations than the subproblem took iterations.
        """
        known, settings = self._current, self.settings
        if known.point is not None:
            return known.point
        known.point = certify(self.problem, self.dual, solved.at)  # kept if Ctrl-C comes now
        if settings.least_squares and self.interruption is not Status.INTERRUPTED:
            known.point = self._improve(known.point, solved.at)
        skip = self.interruption or self.termination.monitor.is_unbounded()
        if settings.active_set and not skip and not self.termination.is_solution(known.point):
            stop, tolerances = self.budget.used_up, settings.tolerances
            if self.curvature is None or known.psi is None:
                found = finish(self.problem, known.point, tolerances, solved.inner.iterations, stop)
            elif self.tolerance.constant:
                found = None
            else:
                found = newton_finish(
                    self.problem, known.psi, solved.at, known.point, tolerances, stop
                )
            known.point = found or known.point
        return known.point

    def update_multipliers(self, solved: Solved, point: Certified) -> OuterRecord:
        """Steps 2 to 4: choose σ, move y, grow β; then record the iteration."""
        (inner, at), primal = solved, point.residuals.primal
        dual, termination = self.dual, self.termination
        self._current, self.point = CurrentIteration(), point
        if termination.monitor.is_unbounded():
            step = dual.update(at.r, hold=_UNBOUNDED_GROWTH)
            termination.observe_unbounded(point)
        else:
            self.at = at
            self.restoration.observe(primal)
            residual = dual.residual_norm(at.r) / self.problem.r_scale
            violation = max(primal, residual) / self.settings.tolerances.eps_A
            step = move(dual, at.r, self.tolerance.hold(violation, inner, dual.nu))
            termination.observe(point, step, dual.beta, inner.status)
        if self.interruption:
            termination.end(self.interruption)
        self.tolerance.advance(dual)
        self.records.append(outer_record(step, point, inner, self.budget))
        return self.records[-1]

    def restore_feasibility(self) -> None:
        """Leave an infeasible point that traps the run; end the run if no feasible one exists."""
        if self.status is not None or self.budget.used_up():
            return
        grown = self.dual.beta >= _GROWN * self.dual.beta_1
        primal = self.point.residuals.primal
        found = self.restoration.escape(self.point.x, primal, grown=grown)
        if found is None:
            return
        trap, self.at = self.at, self.problem.oracle.at(found.x)
        if found.feasible:
            self._start_again(trap)
        else:
            self.termination.end(Status.INFEASIBLE, self._certified(self.at))

    def _certified(self, at: Point) -> Certified:
        """Measure a point with ŷ, or with least-squares multipliers if they are better."""
        point = certify(self.problem, self.dual, at)
        if not self.settings.least_squares:
            return point
        try:
            return self._improve(point, at)
        except BudgetUsedUpError:
            return point

    def _improve(self, point: Certified, at: Point) -> Certified:
        return improve_multipliers(self.problem, point, self.settings.tolerances, at)

    def _start_again(self, trap: Point) -> None:
        """Start from a feasible point with y = 0 and a β with which ψ is higher in the trap."""
        dual, rise = self.dual, self.at.f - trap.f
        r = violation(trap.r, dual.inequality)
        dual.start(self.at.r, dual.inequality)
        needed = _BARRIER * rise / (dual.beta * phi(r, dual.nu)) if r.any() else 0.0
        dual.update(self.at.r, hold=max(1.0, min(needed, 1e12)))

    def interrupt(self, reason: Status) -> None:
        """Complete the iteration with what is known of it, or end the run, for the given reason."""
        known = self._current
        reached = known.run is not None and known.run.last is not None
        if known.point is None and (self.interruption or not reached):
            self.termination.end(reason)
        self.interruption = self.interruption or reason

    def solution(self) -> Solution:
        """The best point, its certificate, and everything that was spent."""
        state = {
            "x": self.at.x,
            "tol": self.tolerance.value,
            "scales": None if self.scales is None else tuple(self.scales),
            "nu": self.dual.nu,
            "sigma": self.dual.sigma,
            "curvature": self.curvature.state_dict() if self.curvature else None,
            **self.dual.state_dict(),
        }
        return final_solution(
            self.termination.best,
            self.termination.final_status(),
            self.problem,
            self.original,
            self.settings.tolerances,
            self.records,
            self.budget,
            state,
        )
