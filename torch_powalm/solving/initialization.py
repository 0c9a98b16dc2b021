"""Start of a run: a first point in dom g, a first penalty, a first multiplier."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_powalm.checks.dual_settings import checked_multipliers, checked_numbers
from torch_powalm.checks.state_checks import (
    check_keys,
    check_list,
    check_number,
    check_tensor,
    refuse,
)
from torch_powalm.dual import DualState
from torch_powalm.functional import norm
from torch_powalm.solving.budget import Budget, BudgetUsedUpError
from torch_powalm.solving.gradient_scaling import ScaledProblem, Scales, find_scales
from torch_powalm.solving.lagrangian_curvature import is_small
from torch_powalm.solving.oracle import Point
from torch_powalm.solving.problem import Problem
from torch_powalm.solving.violation_slope import neighbor

_STATE = ("y", "beta", "k", "start_norm", "last_norm", "tol")
_SMALLEST = 1e-200  # factor of a scaled problem
_OPTIONAL = ("x", "scales", "curvature", "nu", "sigma")

# p: pull of the penalty at x_1 relative to that of the objective; q: factor by which the violation
# has decreased when all ν are equally stiff. Quasi-Newton directions can handle a stiff ψ, and with
# a weak penalty they run to poor local minima; first-order methods pay for stiffness in iterations.
_STIFF, _SOFT = (10.0, 0.04), (1.0, 1e-3)
_NEIGHBORS = (0.1, 1e-3)  # distances relative to ‖x‖; the second where the first one is too far:
_WILD = 1e6  # slope and violation there relative to those at x


class Start(NamedTuple):
    """The problem as the run sees it, how it was scaled, the first point and the dual state."""

    problem: Problem
    scales: Scales | None
    at: Point
    dual: DualState


def initialize(
    problem: Problem,
    x_1: Tensor,
    *,
    beta_1: float | None,
    y_1: Tensor | None,
    state: Mapping[str, Any] | None,
    stiff: bool,
    scale: bool,
    budget: Budget,
    **dual_settings: Any,
) -> Start:
    """Evaluate the first point, scale the problem and start the dual state there.

    Where the budget is too small for that, nothing is scaled and the first penalty is a guess.

    Args:
        problem: f, g and the constraints.
        x_1: start, of any shape; not modified.
        beta_1: first penalty; None for that of `first_penalty`.
        y_1: first multiplier; None for 0.
        state: `Solution.state` of a run to continue; None for a new run.
        stiff: whether the inner solver can handle a stiff ψ.
        scale: whether to scale the problem.
        budget: of the run; the first point is evaluated in any case.
        dual_settings: the other arguments of `DualState`.
    """
    guess = min(1.0, dual_settings["beta_max"]) if beta_1 is None else beta_1
    dual = DualState(beta_1=guess, **dual_settings)  # wrong settings raise before any work
    x = first_point(problem, x_1)
    at = problem.oracle.at(x)
    problem.oracle.before = budget.check
    scales = None
    if y_1 is not None and state is not None:
        raise ValueError(f"y_1 must be None where state is given, got {y_1!r}")
    if state is not None:
        _check_rule(state, dual)
        scales = _saved_scales(state.get("scales"), at.r)
    try:
        if state is None and scale:
            small = stiff and is_small(problem.g, x, len(at.r))
            scales = find_scales(problem, at, dense=small)
        if scales is not None:
            problem = ScaledProblem(problem, scales)
            at = problem.oracle.scaled(at)
        if beta_1 is None:
            beta_1 = first_penalty(problem, x, dual.nu, stiff=stiff, at=at)
            dual = DualState(beta_1=beta_1, **dual_settings)
    except BudgetUsedUpError:
        pass
    dual.start(at.r, problem.inequality(at))
    if y_1 is not None:
        _load_multiplier(dual, y_1, problem)
    if state is not None:
        _load_state(dual, state, x)
    return Start(problem, scales, at, dual)


def first_point(problem: Problem, x_1: Tensor) -> Tensor:
    """A copy of x_1, projected onto dom g, at which f and the constraints have been checked."""
    if not isinstance(x_1, Tensor):
        raise TypeError(f"x_1 must be a tensor, got {x_1!r}")
    if x_1.numel() == 0:
        raise ValueError(f"x_1 must have at least one entry, got shape {tuple(x_1.shape)}")
    if not x_1.is_floating_point():
        raise TypeError(f"x_1 must have a floating-point dtype, got {x_1.dtype}")
    if not x_1.isfinite().all():
        raise ValueError(f"x_1 must be finite, got {x_1[~x_1.isfinite()][0].item()!r}")
    x = x_1.detach().clone()
    if problem.g.value(x) == math.inf:
        # The level of the caller of power_alm: initialize, power_alm and no_grad are in between.
        warnings.warn("x_1 is outside dom g: the run starts at its projection", stacklevel=5)
        x = problem.g.prox(x, torch.finfo(x.dtype).eps)
    problem.oracle.check(x)
    return x


def first_penalty(
    problem: Problem, x: Tensor, nu: float, *, stiff: bool, at: Point | None = None
) -> float:
    """The β with which the penalty pulls p times as hard as the objective at x, for ν = 1.

        β = p ‖∇f‖ / (‖Jᵀu‖ ρ) (qρ)^(1−ν),   u = v/‖v‖,   ρ = max(‖v‖, ‖Jᵀu‖ ‖x‖/10),
                                                          v = (A, max(B, 0))

    The stiffness β‖v‖^(ν−1) is the same for all ν once the violation has decreased by the factor
    q: this is the curvature that the inner solver faces then. Balancing at x itself would make it
    too large.

    β scales correctly with f, v and x. The bound on ρ prevents an almost feasible start from
    producing an arbitrarily large penalty. Each gradient is the larger of the one at x and the one
    at a random point at a distance of ‖x‖/10, because one of them may vanish at x by symmetry;
    the point is closer to x where slope and violation would be larger by orders of magnitude.

    Args:
        problem: f and the constraints.
        x: the start.
        nu: ν.
        stiff: p = 10 and q = 0.04, for solvers that use curvature; else p = 1 and q = 0.001.
        at: the start, if it is already evaluated.
    """
    if not problem.oracle.constraints:
        return 1.0
    p, q = _STIFF if stiff else _SOFT
    x_norm = float(torch.linalg.vector_norm(x)) or 1.0
    pull = slope = v_norm = 0.0
    gap = math.inf
    for distance in 0.0, *_NEIGHBORS:
        point = x if distance == 0 else neighbor(problem.g, x, distance * x_norm)
        if at is None or at.x is not point:
            at = problem.oracle.at(point)
        v = problem.violation(at)
        v_norm_here = norm(v)
        u = v / v_norm_here if v_norm_here > 0 else _signs(v)
        grad_f = at.gradient(torch.zeros_like(v))
        slope_here = float(torch.linalg.vector_norm(at.pull(u)))
        if 0 < _WILD * slope < slope_here and _WILD * v_norm < v_norm_here:
            continue  # it says nothing of x; a closer one does
        if math.isfinite(v_norm_here) and math.isfinite(at.f):
            pull = max(pull, float(torch.linalg.vector_norm(grad_f)))
            slope = max(slope, slope_here)
            v_norm = max(v_norm, v_norm_here)
            gap = min(gap, float(at.r.abs().min()))
        if distance > 0:
            break
    # Far inside all constraints the nearest one tells how large a violation is.
    rho = max(v_norm, 0.1 * slope * x_norm, gap if v_norm == 0 else 0.0)
    beta = p * pull / (slope * rho) * (q * rho) ** (1 - nu) if slope * rho > 0 else 1.0
    return beta if 0 < beta < math.inf else 1.0


def _signs(v: Tensor) -> Tensor:
    """A unit vector of equal entries with random signs, so that rows of J do not cancel."""
    signs = torch.randint(0, 2, (len(v),), generator=torch.Generator().manual_seed(0))
    u: Tensor = (2 * signs - 1).to(v) * len(v) ** -0.5
    return u


def _load_multiplier(dual: DualState, y_1: Tensor, problem: Problem) -> None:
    """Start from the multiplier y_1."""
    if not isinstance(y_1, Tensor):
        raise TypeError(f"y_1 must be a tensor, got {y_1!r}")
    if y_1.shape != dual.y.shape:
        raise ValueError(f"y_1 must have shape {tuple(dual.y.shape)}, got {tuple(y_1.shape)}")
    if not y_1.isfinite().all():
        raise ValueError(f"y_1 must be finite, got {y_1[~y_1.isfinite()][0].item()!r}")
    inequality = dual.inequality
    if inequality is not None and (y_1[inequality] < 0).any():
        smallest = y_1[inequality].amin().item()
        raise ValueError(f"y_1 must be nonnegative for inequalities, got {smallest!r}")
    y = problem.scaled_multiplier(y_1.to(dual.y))
    dual.load_state_dict({**dual.state_dict(), "y": y})


def _check_rule(state: Any, dual: DualState) -> None:
    """Raise unless a saved state has all entries, and is of a run with the same ν and rule."""
    if not isinstance(state, Mapping):
        raise TypeError(f"state must be that of a Solution, got {type(state).__name__}")
    missing = [name for name in _STATE if name not in state]
    if missing:
        raise ValueError(f"state must be that of a Solution, got none of its {missing}")
    check_keys(state, "state", _STATE, _OPTIONAL)
    for name, here in (("nu", dual.nu), ("sigma", dual.sigma)):
        found = state.get(name, here)
        if type(found) is not type(here) or found != here:
            rule = f"be {here!r} as in this run (or pass y_1=solution.y instead)"
            refuse(f"state[{name!r}]", rule, found)


def _saved_scales(saved: Any, r: Tensor) -> Scales | None:
    """Return the scales of a saved state."""
    if saved is None:
        return None
    where = "state['scales']"
    f, factors = check_list(saved, where, lambda item, _: item, 2)
    f = check_number(f, f"{where}[0]", low=_SMALLEST, high=1.0)
    factors = check_tensor(factors, f"{where}[1]", shapes=[tuple(r.shape)])
    wrong = factors[(factors < _SMALLEST) | (factors > 1)]
    if len(wrong):
        raise ValueError(f"{where}[1] must be in (0, 1], got {wrong[0].item()!r} in it")
    return Scales(f, factors.to(r))


def _load_state(dual: DualState, state: Mapping[str, Any], x: Tensor) -> None:
    """Continue from the `state` of a Solution; raise if a value in it is out of range."""
    check_tensor(state.get("x", x), "state['x']", shapes=[tuple(x.shape)])
    check_number(state["tol"], "state['tol']", positive=True, infinite=True)
    if isinstance(state["y"], Tensor) and state["y"].shape != dual.y.shape:
        shapes = tuple(dual.y.shape), tuple(state["y"].shape)
        raise ValueError("state must have y of shape {}, got {}".format(*shapes))
    if isinstance(state["beta"], float) and not 0 < state["beta"] < math.inf:
        raise ValueError(f"state must have a positive and finite beta, got {state['beta']!r}")
    numbers = checked_numbers(state, "state", dual.beta_max, strict=True)
    where, kinds = "state['y']", dual.inequality
    y = checked_multipliers(state["y"], where, len(dual.y), kinds, dual.y_max, strict=True)
    dual.load_state_dict({**numbers, "y": y.to(dual.y)})
