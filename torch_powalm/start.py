"""What a run takes from the problem at x_1: a point in dom g, a penalty, a multiplier."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torch_powalm.dual import DualState
from torch_powalm.feasibility import neighbour
from torch_powalm.functional import norm
from torch_powalm.oracle import Point
from torch_powalm.problem import Problem

# Pull of the penalty at x_1 over that of the objective, and fall of the violation at which all ν
# are equally stiff. Quasi-Newton directions bear a stiff ψ, and a weak penalty lets them run to
# poor local minima; first-order methods pay for stiffness with iterations.
_STIFF, _SOFT = (10.0, 0.04), (1.0, 1e-3)


def first_point(problem: Problem, x_1: Tensor) -> Tensor:
    """A copy of x_1, projected onto dom g, where f and the constraints have passed their checks."""
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
        warnings.warn("x_1 is outside dom g: the run starts at its projection", stacklevel=4)
        x = problem.g.prox(x, torch.finfo(x.dtype).eps)
    problem.oracle.check(x)
    return x


def first_penalty(problem: Problem, x: Tensor, nu: float, *, stiff: bool) -> float:
    """The β at which the penalty pulls p times as much as the objective at x, for ν = 1.

        β = p ‖∇f‖ / (‖Jᵀu‖ ρ) (qρ)^(1−ν),   u = v/‖v‖,   ρ = max(‖v‖, ‖Jᵀu‖ ‖x‖/10),
                                                          v = (A, max(B, 0))

    The stiffness β‖v‖^(ν−1) is the same for every ν where the violation has fallen by q: what the
    inner solver meets then is its curvature, and a balance at x itself would make it too large.

    It scales as it should with f, v and x. The bound on ρ keeps a start that happens to be almost
    feasible from asking for a penalty without limit. Gradients are the larger of those at x and
    at a random point a tenth of ‖x‖ away, since one of them may vanish at x by symmetry.

    Args:
        problem: f and the constraints.
        x: the start.
        nu: ν.
        stiff: p = 10 and q = 0.04, for solvers with curvature; else p = 1 and q = 0.001.
    """
    p, q = _STIFF if stiff else _SOFT
    x_norm = float(torch.linalg.vector_norm(x)) or 1.0
    pull = slope = v_norm = 0.0
    for point in x, neighbour(problem.g, x, 0.1 * x_norm):
        at = problem.oracle.at(point)
        v = problem.violation(at)
        v_norm_here = norm(v)
        u = v / v_norm_here if v_norm_here > 0 else torch.full_like(v, len(v) ** -0.5)
        grad_f = at.gradient(torch.zeros_like(v))
        Ju = problem.oracle.at(point, objective=False).gradient(u)
        if math.isfinite(v_norm_here) and math.isfinite(at.f):
            pull = max(pull, float(torch.linalg.vector_norm(grad_f)))
            slope = max(slope, float(torch.linalg.vector_norm(Ju)))
            v_norm = max(v_norm, v_norm_here)
    rho = max(v_norm, 0.1 * slope * x_norm)
    beta = p * pull / (slope * rho) * (q * rho) ** (1 - nu) if slope > 0 else 1.0
    return beta if 0 < beta < math.inf else 1.0


def start_dual(
    dual: DualState,
    problem: Problem,
    at: Point,
    y_1: Tensor | None,
    state: Mapping[str, Any] | None,
) -> None:
    """Start the dual state at a point, from y_1 if given, or go on from a saved state."""
    r, inequality = at.r, problem.inequality(at)
    dual.start(r, inequality)
    if y_1 is not None:
        if not isinstance(y_1, Tensor):
            raise TypeError(f"y_1 must be a tensor, got {y_1!r}")
        if state is not None:
            raise ValueError(f"y_1 must be None where state is given, got {y_1!r}")
        if y_1.shape != r.shape:
            raise ValueError(f"y_1 must have shape {tuple(r.shape)}, got {tuple(y_1.shape)}")
        if not y_1.isfinite().all():
            raise ValueError(f"y_1 must be finite, got {y_1[~y_1.isfinite()][0].item()!r}")
        if inequality is not None and (y_1[inequality] < 0).any():
            smallest = y_1[inequality].amin().item()
            raise ValueError(f"y_1 must be nonnegative for inequalities, got {smallest!r}")
        dual.load_state_dict({**dual.state_dict(), "y": y_1.to(r)})
    if state is not None:
        missing = [name for name in (*dual.state_dict(), "tol") if name not in state]
        if missing:
            raise ValueError(f"state must be that of a Solution, got none of its {missing}")
        if state["y"].shape != r.shape:
            shapes = tuple(r.shape), tuple(state["y"].shape)
            raise ValueError("state must have y of shape {}, got {}".format(*shapes))
        if not 0 < state["beta"] < math.inf:
            raise ValueError(f"state must have a positive and finite beta, got {state['beta']!r}")
        dual.load_state_dict({**state, "y": state["y"].to(r)})
