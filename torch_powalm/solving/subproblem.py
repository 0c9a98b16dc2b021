"""Subproblem: the smooth function ψ = L_β(·, y) that an inner solver minimizes."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_powalm.dual import DualState
from torch_powalm.solving.lagrangian_curvature import LagrangianCurvature, is_constant
from torch_powalm.solving.oracle import Point
from torch_powalm.solving.penalty_model import Expansion
from torch_powalm.solving.problem import Problem
from torch_powalm.solving.termination import DescentMonitor


@dataclass
class _Known:
    """A point with its weights and the gradient of ψ; J is computed when it is first needed."""

    at: Point
    w: Tensor
    grad_psi: Tensor
    _expansion: Expansion | None = None

    def expansion(self) -> Expansion | None:
        if self._expansion is None:
            self._expansion = expansion(self.at, self.grad_psi, self.w)
        return self._expansion


def expansion(at: Point, v: Tensor, w: Tensor) -> Expansion | None:
    """First derivatives at a point with v = ∇f + Jᵀw; None if they are not finite."""
    J = at.jacobian()
    grad_f = v.reshape(-1) - J.T @ w
    if not (bool(grad_f.isfinite().all()) and bool(J.isfinite().all())):
        return None
    return Expansion(at.x.reshape(-1), grad_f, at.r, J)


class Subproblem:
    """ψ(x) = f(x) + ⟨y, r⟩ + βφ(r), where r = (A, u) with the slacks of B eliminated.

    y and β come from the dual state, which must not change during the subproblem. The last point
    is cached: asking for a value and then for the gradient at the same tensor costs one
    evaluation. A point is recognized by its tensor, so callers must not modify a tensor in place
    after they have passed it here.

    Args:
        problem: f and the constraints.
        dual: y, β and ν.
        at: a point that is already evaluated; None if there is none.
        monitor: sees every value of ψ; None for one with default settings.
        curvature: Hessian of the Lagrangian, for `model_step`; None for large problems.
    """

    def __init__(
        self,
        problem: Problem,
        dual: DualState,
        at: Point | None = None,
        monitor: DescentMonitor | None = None,
        curvature: LagrangianCurvature | None = None,
    ) -> None:
        self.oracle, self.g, self.dual = problem.oracle, problem.g, dual
        self.monitor = DescentMonitor() if monitor is None else monitor
        self.curvature = curvature
        self._known: deque[_Known] = deque(maxlen=3)  # the last points with a gradient
        self._base: _Known | None = None  # where the last step of the model started
        self._at: Point | None = None
        self._value = math.nan  # ψ, w and ∇ψ at the cached point, as far as they are known
        self._w: Tensor | None = None
        self._grad: Tensor | None = None
        if at is not None:
            self._move(at)

    def point(self, x: Tensor) -> Point:
        """The oracle's values at x; nothing is evaluated if x is one of the last points."""
        if self._at is not None and self._at.x is x:
            return self._at
        found = next((known.at for known in self._known if known.at.x is x), None)
        return self.oracle.at(x) if found is None else found

    def value(self, x: Tensor) -> float:
        """ψ(x); inf if a constraint is not finite."""
        if self._at is None or self._at.x is not x:
            self._move(self.oracle.at(x))
        return self._value

    def value_and_grad(self, x: Tensor) -> tuple[float, Tensor]:
        """ψ(x) and ∇ψ(x); inf and nan if a constraint is not finite."""
        value = self.value(x)
        if self._grad is None:
            if self._w is None or self._at is None:
                self._grad = torch.full_like(x, math.nan)
            else:
                self._grad = self._at.gradient(self._w)
                if self.curvature is not None:
                    self._known.append(_Known(self._at, self._w, self._grad))
        return value, self._grad

    def is_flat(self, x: Tensor) -> bool:
        """Whether ∇f = 0 at x, up to rounding: it is what ∇ψ leaves of Jᵀw."""
        at, w = self.expand(x)
        if at is None:
            return False
        return is_constant(at, w)

    def first_radius(self, x: Tensor) -> float:
        """A bound on the first step, since a model may be unbounded."""
        return math.inf if self.curvature is None else self.curvature.first_radius(x)

    def model_step(self, x: Tensor, radius: float) -> tuple[Tensor, float] | None:
        """A step in a box of this radius and the decrease of ψ that the model predicts.

        None if the derivatives at x are not finite.
        """
        at, w = self.expand(x)
        self._base = next((known for known in self._known if known.at.x is x), None)
        if self.curvature is None or at is None:
            return None
        d, decrease = self.curvature.step(at, w, self.dual, radius)
        return d.view_as(x), decrease

    def corrected_step(
        self, x: Tensor, refused: Tensor, radius: float
    ) -> tuple[Tensor, float] | None:
        """The same with the constraints as they were found at a refused point; None if no help."""
        (at, _), (there, _) = self.expand(x), self.expand(refused)
        if self.curvature is None or at is None or there is None:
            return None
        step = self.curvature.corrected_step(at, there, self.dual, radius)
        return None if step is None else (step[0].view_as(x), step[1])

    def learn(self, x: Tensor, x_next: Tensor, *, accepted: bool) -> None:
        """Improve the model by two points; what x_next shows is used even if it is refused."""
        (old, w), (new, w_next) = self.expand(x), self.expand(x_next)
        if self.curvature is not None and old is not None and new is not None:
            self.curvature.choose(old, w, new, self.dual)
            self.curvature.learn(old, new, w_next if accepted else w, accepted=accepted)

    def expand(self, x: Tensor) -> tuple[Expansion | None, Tensor]:
        """First derivatives at a point, None if they are not finite, and the weights."""
        known = next((known for known in self._known if known.at.x is x), self._base)
        if known is None or known.at.x is not x:
            self.value_and_grad(x)
            if self._at is None or self._w is None or self._grad is None:
                return None, x
            known = _Known(self._at, self._w, self._grad)
        return known.expansion(), known.w

    def _move(self, at: Point) -> None:
        terms = self.dual.value_and_weight(at.r)
        self._at = at
        self._value, self._w = (math.inf, None) if terms is None else (at.f + terms[0], terms[1])
        self._grad = None
        # Outside dom g, where trials may go, a low value says nothing of the problem.
        if not (self.monitor.is_low(self._value) and self.g.value(at.x) == math.inf):
            self.monitor.observe(at.x, self._value, at.f)
