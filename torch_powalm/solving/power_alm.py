"""power_alm: the inexact power augmented Lagrangian method (paper, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import torch
from torch import Tensor

from torch_powalm.result import OuterRecord, Solution, Status
from torch_powalm.solvers import PANOC, Solver
from torch_powalm.solving.budget import Budget, BudgetUsedUpError
from torch_powalm.solving.initialization import initialize
from torch_powalm.solving.outer_loop import OuterLoop
from torch_powalm.solving.problem import Problem
from torch_powalm.solving.progress_bar import ProgressBar
from torch_powalm.solving.settings import Limits, Settings, Tolerances, check_arguments

_OMEGA = 3.0  # default growth of β, applied if the violation has not decreased to
_SUFFICIENT = 0.25  # of the previous one


@torch.no_grad()
def power_alm(
    problem: Problem,
    x_1: Tensor,
    *,
    nu: float = 1.0,
    beta_1: float | None = None,
    omega: float | None = None,
    lam: float | None = None,
    active_set: bool = True,
    least_squares: bool = True,
    scale: bool = True,
    sigma: str = "penalty",
    sigma_1: float = 10.0,
    beta_max: float = math.inf,
    y_max: float = math.inf,
    sufficient_decrease: float | None = None,
    solver: Solver | Callable[[float], Solver] | None = None,
    eps_phi: float = 1e-4,
    eps_A: float = 1e-4,
    y_1: Tensor | None = None,
    state: Mapping[str, Any] | None = None,
    max_outer: int = 200,
    max_inner: int = 10_000,
    max_idle: int | None = 2000,
    max_gradients: int | None = None,
    max_seconds: float | None = None,
    callback: Callable[[OuterRecord, Tensor], object] | None = None,
    progress: bool = False,
) -> Solution:
    """Minimize f(x) + g(x) subject to A(x) = 0 and B(x) ≤ 0.

        1.  x ← a point with dist(−∇ψ(x), ∂g(x)) ≤ λ/β, where ψ = f + ⟨y, r⟩ + βφ(r)
        2.  σ ← β, or the paper's rule from σ_1
        3.  y ← y + σ∇φ(r(x))
        4.  β ← ωβ

    The run ends when ‖(A, max(B, 0))‖ ≤ eps_A and the stationarity and complementarity of (x, ŷ)
    are at most eps_phi. Both are computed from scratch, with ŷ = y + β∇φ(r(x)) taken before step 3,
    or with least-squares multipliers if they are better. Only then is the status CONVERGED. If g
    is a box and few variables are off their bounds, an active-set method finishes the run after
    step 1. Ctrl-C returns the best point so far, with the status INTERRUPTED.

    Example:
        solution = power_alm(Problem(f, equality=A), x_1)

    Args:
        problem: f, g and the constraints.
        x_1: start, of any shape; not modified.
        nu: exponent ν of the penalty, in (0, 1]; 1 is the classical method.
        beta_1: first penalty, > 0; None to balance penalty and objective at x_1, with ten times
            that penalty for PANOC.
        omega: growth of the penalty, ≥ 1; None for 3 with a sufficient decrease of ¼, unless
            another one is given, or for 10 and 0.1 where Newton steps are used (few unknowns).
        lam: factor λ of the inner tolerance λ/β, > 0, in the units of the scaled problem; it keeps
            decreasing while β does not grow. None for a tolerance that decreases from the first
            residual to eps_phi/2.
        active_set: whether an active-set method tries to finish the run after step 1; False for
            Algorithm 1 as in the paper.
        least_squares: whether least-squares multipliers certify a point where ŷ does not; False for
            Algorithm 1 as in the paper.
        scale: whether f and the constraints are divided by their gradients at x_1 where these are
            large; residuals and multipliers are in your units either way. An explicit beta_1 or
            solver is in your units, too, and then nothing is scaled.
        sigma: dual step rule: "penalty" (σ = β), "paper" (Algorithm 1), "sqrt" (σ_1/√(k+1), which
            the paper's experiments used) or "pi" (σ_1 on r itself).
        sigma_1: first dual step of the last three rules, ≥ 0.
        beta_max: largest penalty, ≥ beta_1.
        y_max: largest absolute entry of y, > 0.
        sufficient_decrease: in (0, 1): β grows only if ‖r‖ has not decreased by this factor.
        solver: inner solver, or a function of β that returns one; None for PANOC.
        eps_phi: tolerance of the dual residual, > 0.
        eps_A: tolerance of the primal residual, > 0.
        y_1: first multiplier, with the entries of the equalities first; None for 0.
        state: `Solution.state` of a run to continue exactly, from x_1 = state["x"].
        max_outer: bound on outer iterations, at least 1.
        max_inner: bound on the iterations of each subproblem, at least 1.
        max_idle: bound on the evaluations of a subproblem that hardly decrease it, at least 1; None
            for no bound, and then max_inner alone ends a subproblem that does not converge.
        max_gradients: bound on evaluations of ∇f.
        max_seconds: bound on wall time.
        callback: called with each record and x; the run ends if it returns True.
        progress: draw a progress bar on standard error.

    Reference: Bodard, Oikonomidis, Laude, Patrinos 2025, Algorithm 1.
    """
    tolerances = Tolerances(eps_phi, eps_A)
    limits = Limits(max_outer, max_inner, max_idle, max_gradients, max_seconds)
    default_growth = omega is None and sufficient_decrease is None
    settings = Settings(tolerances, limits, solver, lam, active_set, least_squares, default_growth)
    check_arguments(problem, callback, settings)
    if omega is None:
        omega = _OMEGA
        sufficient_decrease = _SUFFICIENT if sufficient_decrease is None else sufficient_decrease
    original, counted = problem.copy(), problem.oracle.calls
    budget = Budget(original.oracle.calls, limits)
    start = initialize(
        original,
        x_1,
        beta_1=beta_1,
        y_1=y_1,
        state=state,
        stiff=solver is None or isinstance(solver, PANOC),
        scale=scale and beta_1 is None and solver is None,
        budget=budget,
        nu=nu,
        omega=omega,
        sigma=sigma,
        sigma_1=sigma_1,
        beta_max=beta_max,
        y_max=y_max,
        sufficient_decrease=sufficient_decrease,
    )
    loop = OuterLoop(
        start.problem, original, start.dual, start.at, settings, budget, start.scales, state
    )

    with closing(ProgressBar(progress, tolerances)) as bar:
        while loop.status is None:
            try:
                solved = loop.solve_subproblem()  # step 1
                point = loop.certify(solved)
                record = loop.update_multipliers(solved, point)  # steps 2 to 4
                bar.show(record)
                if callback is not None and callback(record, point.x) is True:
                    loop.termination.end(Status.INTERRUPTED)
                loop.restore_feasibility()
                loop.termination.check_limits(len(loop.records))
            except KeyboardInterrupt:
                loop.interrupt(Status.INTERRUPTED)
            except BudgetUsedUpError:
                loop.interrupt(Status.BUDGET)
    try:
        solution = loop.solution()
    except KeyboardInterrupt:  # of a run that has ended
        solution = loop.solution()
    counted.add(budget.spent)
    return solution
