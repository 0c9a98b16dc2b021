"""Whether the violation of the constraints has a slope at a point, so that it can decrease."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from torch_powalm.dual import DualState
from torch_powalm.functional import norm
from torch_powalm.prox import Bounded, Proximable
from torch_powalm.prox.broadcasting import expand_like
from torch_powalm.solving.box_newton import minimize_on_box
from torch_powalm.solving.lagrangian_curvature import bounds_of, is_small
from torch_powalm.solving.oracle import Point
from torch_powalm.solving.penalty_model import Expansion, PenaltyModel
from torch_powalm.solving.problem import Problem

_DOMINANCE = 1e8  # factor by which a gradient outweighs everything in g except its domain
NOISE = 1e-3  # distance of a neighbor, relative to a typical ‖x‖
_STATIONARY = 1e-3  # relative to the slope at a neighbor: a smaller slope counts as zero
_REDUCIBLE = 1e-2  # decrease of ½‖v‖² by linearized constraints that shows a slope


@torch.no_grad()
def is_stuck(problem: Problem, x: Tensor, x_norm: float) -> bool:
    """Whether the violation has no slope at an infeasible x.

    Its gradient on dom g is compared with the one at a neighbor, so the norm of a typical x is the
    only scale needed. If the neighbor is feasible, the violation has a slope. With few unknowns a
    step for the linearized constraints, no longer than ‖x‖, must not be able to decrease it either:
    a slope that looks small may be that of a narrow valley.
    """
    slopes = []
    for point in x, neighbor(problem.g, x, NOISE * x_norm):
        v_norm, grad = violation_and_grad(problem, point)
        if v_norm == 0:
            return False
        slopes.append(Domain(problem.g).distance(point, grad) / v_norm)
    if not (slopes[0] <= _STATIONARY * slopes[1] and slopes[0] < math.inf):
        return False
    return linear_decrease(problem, x, x_norm) <= _REDUCIBLE


def linear_decrease(problem: Problem, x: Tensor, x_norm: float) -> float:
    """The fraction of ½‖v‖² by which a step decreases it if the constraints were linear.

    0 for large problems, where it is not computed.
    """
    at = problem.oracle.at(x, objective=False)
    if not is_small(problem.g, x, len(at.r)):
        return 0.0
    flat, J = x.reshape(-1), at.jacobian()
    if not (bool(J.isfinite().all()) and bool(at.r.isfinite().all())):
        return math.inf
    dual = half_square_dual(problem, at)
    zero = torch.zeros_like(flat)
    model = PenaltyModel(Expansion(flat, zero, at.r, J), zero.new_zeros(len(zero), len(zero)), dual)
    radius = max(x_norm, norm(flat))
    lower, upper = (bound - flat for bound in bounds_of(problem.g, x))
    before = model.value_and_grad(zero)[0]
    _, value = minimize_on_box(model, zero, lower.clamp(min=-radius), upper.clamp(max=radius))
    return (before - value) / before if before > 0 else 0.0


def half_square_dual(problem: Problem, at: Point) -> DualState:
    """The state with y = 0, β = 1 and ν = 1: its penalty is ½‖(A, max(B, 0))‖²."""
    dual = DualState(
        nu=1.0,
        beta_1=1.0,
        omega=1.0,
        sigma="penalty",
        sigma_1=1.0,
        beta_max=math.inf,
        y_max=math.inf,
        sufficient_decrease=None,
    )
    dual.start(at.r, problem.inequality(at))
    return dual


def neighbor(g: Proximable, x: Tensor, distance: float, seed: int = 0) -> Tensor:
    """A point of dom g in a random direction from x, the same direction at every call.

    Variables whose bounds are closer to each other than ‖x‖ move by less.
    """
    typical = float(torch.linalg.vector_norm(x)) or 1.0
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).to(x)
    if isinstance(g, Bounded) and isinstance(g.bounds, tuple):
        lower, upper = (expand_like(bound, x) for bound in g.bounds)
        noise = noise * torch.as_tensor((upper - lower) / typical).clamp(max=1.0)
    step = distance / (float(torch.linalg.vector_norm(noise)) or 1.0)
    return g.prox(torch.add(x, noise, alpha=step), torch.finfo(x.dtype).eps)


def violation_and_grad(problem: Problem, x: Tensor) -> tuple[float, Tensor]:
    """‖v‖ and Jᵀv for v = (A(x), max(B(x), 0))."""
    at = problem.oracle.at(x, objective=False)
    v = problem.violation(at)
    return norm(v), at.gradient(v)


class Domain:
    """The indicator of dom g, as the limit of g/c for large c."""

    is_indicator: ClassVar[bool] = True

    def __init__(self, g: Proximable) -> None:
        self.g = g

    def value(self, x: Tensor) -> float:
        """0 in dom g, inf elsewhere."""
        return math.inf if self.g.value(x) == math.inf else 0.0

    def prox(self, v: Tensor, step: float) -> Tensor:
        """The projection onto dom g."""
        return self.g.prox(v, step / _DOMINANCE)

    def distance(self, x: Tensor, v: Tensor) -> float:
        """dist(−v, normal cone of dom g at x)."""
        return self.g.distance(x, _DOMINANCE * v) / _DOMINANCE
