"""Subproblem: the smooth function ψ = L_β(·, y) that an inner solver minimizes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_powalm.dual import DualState
from torch_powalm.solving.oracle import Point
from torch_powalm.solving.problem import Problem
from torch_powalm.solving.termination import DescentMonitor


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
    """

    def __init__(
        self,
        problem: Problem,
        dual: DualState,
        at: Point | None = None,
        monitor: DescentMonitor | None = None,
    ) -> None:
        self.oracle, self.g, self.dual = problem.oracle, problem.g, dual
        self.monitor = DescentMonitor() if monitor is None else monitor
        self._at: Point | None = None
        self._value = math.nan  # ψ, w and ∇ψ at the cached point, as far as they are known
        self._w: Tensor | None = None
        self._grad: Tensor | None = None
        if at is not None:
            self._move(at)

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
        return value, self._grad

    def _move(self, at: Point) -> None:
        terms = self.dual.value_and_weight(at.r)
        self._at = at
        self._value, self._w = (math.inf, None) if terms is None else (at.f + terms[0], terms[1])
        self._grad = None
        # Outside dom g, where trials may go, a low value says nothing of the problem.
        if not (self.monitor.is_low(self._value) and self.g.value(at.x) == math.inf):
            self.monitor.observe(self._value, at.f)
