"""Settings of a run, and the checks of the arguments of power_alm."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from torch_powalm.checks.dual_settings import check_numbers
from torch_powalm.result import Residuals
from torch_powalm.solvers import PANOC, Solver
from torch_powalm.solving.problem import Problem

_NEWTON = 200  # unknowns up to which the default solver uses Newton directions

SolverChoice: TypeAlias = Solver | Callable[[float], Solver] | None


class Tolerances(NamedTuple):
    """When a point counts as a solution.

    Args:
        eps_phi: tolerance of the dual residual, > 0.
        eps_A: tolerance of the primal residual, > 0.
    """

    eps_phi: float
    eps_A: float

    def ratio(self, primal: float, dual: float) -> float:
        """Larger of the two residuals over its tolerance; inf if a residual is not finite."""
        if not (math.isfinite(primal) and math.isfinite(dual)):
            return math.inf  # max would skip a nan
        return max(primal / self.eps_A, dual / self.eps_phi)

    def missing(self, residuals: Residuals) -> tuple[str, ...]:
        """The residuals that are above their tolerance, as text."""
        rows = (
            ("primal residual", residuals.primal, self.eps_A),
            ("stationarity", residuals.stationarity, self.eps_phi),
            ("complementarity", residuals.complementarity, self.eps_phi),
        )
        return tuple(f"{name} {v:.3e} > {eps:g}" for name, v, eps in rows if not v <= eps)


class Limits(NamedTuple):
    """How much work a run may do.

    Args:
        max_outer: bound on outer iterations, at least 1.
        max_inner: bound on the iterations of each subproblem, at least 1.
        max_idle: bound on the evaluations of a subproblem that hardly decrease it, at least 1;
            None for no bound.
        max_gradients: bound on gradient calls, > 0; None for no bound.
        max_seconds: bound on wall time, > 0; None for no bound.
    """

    max_outer: int
    max_inner: int
    max_idle: int | None
    max_gradients: int | None
    max_seconds: float | None


class Settings(NamedTuple):
    """Every setting of a run except those of the dual state.

    Args:
        tolerances: when a point counts as a solution.
        limits: how much work the run may do.
        solver: inner solver, or a function of β that returns one; None for PANOC.
        lam: factor λ of the inner tolerance, > 0; None for an automatic tolerance.
        active_set: whether an active-set method tries to finish the run.
        least_squares: whether least-squares multipliers may certify a point.
        default_growth: whether the growth of β was left to the method.
    """

    tolerances: Tolerances
    limits: Limits
    solver: SolverChoice
    lam: float | None
    active_set: bool
    least_squares: bool
    default_growth: bool = False


def check_arguments(problem: object, callback: object, settings: Settings) -> None:
    """Raise if an argument has the wrong type or is out of range."""
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a Problem, got {problem!r}")
    if not (callback is None or callable(callback)):
        raise TypeError(f"callback must be callable, got {callback!r}")
    _check_solver(settings.solver)
    for name in ("active_set", "least_squares"):
        if not isinstance(switch := getattr(settings, name), bool):
            raise TypeError(f"{name} must be a bool, got {switch!r}")
    tolerances, limits, lam = settings.tolerances, settings.limits, settings.lam
    check_numbers(**tolerances._asdict())
    check_numbers(max_outer=limits.max_outer, max_inner=limits.max_inner)
    optional = {"lam": lam, **limits._asdict()}
    check_numbers(**{name: value for name, value in optional.items() if value is not None})

    for name, value in (*tolerances._asdict().items(), ("lam", lam)):
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value!r}")
    for name in ("max_outer", "max_inner", "max_idle"):
        if (value := getattr(limits, name)) is not None and not value >= 1:
            raise ValueError(f"{name} must be at least 1, got {value!r}")
    for name in ("max_gradients", "max_seconds"):
        if (value := getattr(limits, name)) is not None and not value > 0:
            raise ValueError(f"{name} must be positive, got {value!r}")


def _check_solver(solver: Any) -> None:
    is_solver = solver is None or callable(solver) or hasattr(solver, "iterate")
    if isinstance(solver, type) or not is_solver:
        raise TypeError(f"solver must be a solver or a function of beta, got {solver!r}")


def solver_at(settings: Settings, beta: float) -> Solver:
    """The inner solver at a penalty."""
    solver = settings.solver
    if solver is None:
        return PANOC(newton=_NEWTON)
    if hasattr(solver, "iterate"):
        return solver
    found = solver(beta)
    if not hasattr(found, "iterate"):
        raise TypeError(f"solver must be a function of beta that returns a solver, got {found!r}")
    return found
