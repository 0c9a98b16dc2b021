"""power_alm: the inexact power augmented Lagrangian method (paper, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torch_powalm.dual import DualState, check_numbers
from torch_powalm.outer import OuterLoop
from torch_powalm.outlook import Budget
from torch_powalm.problem import Problem
from torch_powalm.progress import ProgressBar
from torch_powalm.result import OuterRecord, Solution, Status
from torch_powalm.solvers import PANOC, Solver
from torch_powalm.start import first_penalty, first_point, start_dual

_OMEGA = 3.0  # growth of β where the violation has not fallen to
_SUFFICIENT = 0.25  # of the last one


@torch.no_grad()
def power_alm(
    problem: Problem,
    x_1: Tensor,
    *,
    nu: float = 1.0,
    beta_1: float | None = None,
    omega: float | None = None,
    lam: float | None = None,
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
    """Minimise f(x) + g(x) subject to A(x) = 0 and B(x) ≤ 0.

        1.  x ← a point with dist(−∇ψ(x), ∂g(x)) ≤ λ/β, ψ = f + ⟨y, r⟩ + βφ(r)
        2.  σ ← β, or the paper's rule from σ_1
        3.  y ← y + σ∇φ(r(x))
        4.  β ← ωβ

    It ends when ‖(A, max(B, 0))‖ ≤ eps_A and the stationarity and complementarity of (x, ŷ) are at
    most eps_phi, both computed anew, with ŷ = y + β∇φ(r(x)) taken before step 3, or least-squares
    multipliers where these are better. Only then the status is CONVERGED. Where g is a box and few
    unknowns are inside of it, an active-set method tries to end the run after step 1.

    Example:
        solution = power_alm(Problem(f, equality=A), x_1)

    Args:
        problem: f, g and the constraints.
        x_1: start, of any shape; not modified.
        nu: exponent ν of the penalty, in (0, 1]; 1 is the classical method.
        beta_1: first penalty, > 0; None to balance penalty and objective at x_1, at ten times the
            penalty for PANOC.
        omega: growth of the penalty, ≥ 1; None for 3, with a sufficient decrease of ¼ unless
            another one is given.
        lam: factor λ of the inner tolerance, > 0; while β does not grow the tolerance goes on
            falling, and no active-set method is tried. None for a tolerance that falls from the
            first residual to eps_phi/2.
        sigma: dual step rule: "penalty" (σ = β) or "paper".
        sigma_1: first dual step of the rule "paper", ≥ 0.
        beta_max: largest penalty, ≥ beta_1.
        y_max: largest absolute entry of y, > 0.
        sufficient_decrease: in (0, 1): β grows only when ‖r‖ has not fallen by this factor.
        solver: inner solver, or a function of β that returns one; None for PANOC.
        eps_phi: tolerance of the dual residual, > 0.
        eps_A: tolerance of the primal residual, > 0.
        y_1: first multiplier, those of the equalities first; None for 0.
        state: `Solution.state` of a run to be continued from x_1 = state["x"], exactly.
        max_outer: bound on outer iterations, at least 1.
        max_inner: bound on the iterations of each subproblem, at least 1.
        max_idle: bound on evaluations of a subproblem that hardly decrease it, at least 1; None for
            no bound.
        max_gradients: bound on evaluations of ∇f.
        max_seconds: bound on wall time.
        callback: called with each record and x; the run ends if it returns True.
        progress: draw a progress bar on the standard error.

    Reference: Bodard, Oikonomidis, Laude, Patrinos 2025, Algorithm 1.
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a Problem, got {problem!r}")
    if not (callback is None or callable(callback)):
        raise TypeError(f"callback must be callable, got {callback!r}")
    _check(lam, solver, eps_phi, eps_A, max_outer, max_inner, max_idle, max_gradients, max_seconds)
    if omega is None:
        omega = _OMEGA
        sufficient_decrease = _SUFFICIENT if sufficient_decrease is None else sufficient_decrease
    dual_state = partial(
        DualState,
        nu=nu,
        omega=omega,
        sigma=sigma,
        sigma_1=sigma_1,
        beta_max=beta_max,
        y_max=y_max,
        sufficient_decrease=sufficient_decrease,
    )
    dual_state(beta_1=min(1.0, beta_max) if beta_1 is None else beta_1)  # raises before any work
    budget = Budget(problem.oracle.calls, max_gradients, max_seconds)
    x = first_point(problem, x_1)
    if beta_1 is None:
        stiff = solver is None or isinstance(solver, PANOC)
        beta_1 = first_penalty(problem, x, nu, stiff=stiff)
    dual, at = dual_state(beta_1=beta_1), problem.oracle.at(x)
    start_dual(dual, problem, at, y_1, state)
    loop = OuterLoop(problem, dual, at, solver, lam, eps_phi, eps_A, max_inner, max_idle, budget)
    if state is not None:
        loop.tolerance.value = state["tol"]

    bar = ProgressBar(progress, eps_phi, eps_A)
    try:
        while loop.status is None:
            record = loop.advance()
            bar.show(record)
            if callback is not None and callback(record, loop.point.x) is True:
                loop.end(Status.INTERRUPTED)
            loop.leave_a_trap()
            if budget.used_up():
                loop.end(Status.BUDGET)
            if len(loop.records) >= max_outer:
                loop.end(Status.MAX_OUTER)
    except KeyboardInterrupt:
        loop.end(Status.INTERRUPTED)
    finally:
        bar.close()
    return loop.solution()


def _check(
    lam: float | None,
    solver: Any,
    eps_phi: float,
    eps_A: float,
    max_outer: int,
    max_inner: int,
    max_idle: int | None,
    max_gradients: int | None,
    max_seconds: float | None,
) -> None:
    if isinstance(solver, type) or not (
        solver is None or callable(solver) or hasattr(solver, "iterate")
    ):
        raise TypeError(f"solver must be a solver or a function of beta, got {solver!r}")
    check_numbers(eps_phi=eps_phi, eps_A=eps_A, max_outer=max_outer, max_inner=max_inner)
    bounds = {"max_idle": max_idle, "max_gradients": max_gradients, "max_seconds": max_seconds}
    given = {name: value for name, value in {"lam": lam, **bounds}.items() if value is not None}
    check_numbers(**given)
    for name, value in ("eps_phi", eps_phi), ("eps_A", eps_A), ("lam", lam):
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value!r}")
    counts = ("max_outer", max_outer), ("max_inner", max_inner), ("max_idle", max_idle)
    for name, value in counts:
        if value is not None and not value >= 1:
            raise ValueError(f"{name} must be at least 1, got {value!r}")
    for name, value in ("max_gradients", max_gradients), ("max_seconds", max_seconds):
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be positive, got {value!r}")
