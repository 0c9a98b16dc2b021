"""PANOC: L-BFGS directions on the fixed-point residual of the proximal gradient method."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torch_powalm.prox import Proximable
from torch_powalm.solvers.backtracking import rounding, under_model
from torch_powalm.solvers.base import Iterate, Smooth
from torch_powalm.solvers.dense_hessian import DenseHessian, is_suited
from torch_powalm.solvers.lbfgs import LBFGS
from torch_powalm.solvers.prox_gradient import ProxStep, curvature, prox_step, short_step
from torch_powalm.solvers.residual_estimate import ResidualEstimate

_WEIGHTS = (1.0, 0.5, 0.25)  # τ: weight of the quasi-Newton point; z has the rest
_NEWTON_WEIGHTS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)  # the same for a Newton point
_SHRINK = 0.1  # smallest factor of γ in one trial of a quasi-Newton point
_SAFETY = 0.95  # γ is at most this divided by the curvature seen
_DECREASE = 1e-2  # fraction of γ‖r‖² by which a quasi-Newton point must lower the envelope
_RISE = 100.0  # multiple of γ‖r‖² by which ψ may rise above its lowest value unchecked,
_RISE_ABOVE_START = 10.0  # and of its decrease so far by which it may rise above the start
_SHORTEST = 1e-30  # γ relative to the first one: the search for a shorter step has failed
_LONGEST = 1e12  # γ relative to the first one if ψ shows no curvature
_MIN_GROWTH = 1.5  # growth of γ that is worth two new prox steps and a pass over the pairs


@dataclass(frozen=True)
class PANOC:
    """PANOC for smooth or Hölder-smooth ψ, convex or not, and any proximable g.

        r_γ(x) = (x − z)/γ,  z = prox_{γg}(x − γ∇ψ(x)),  φ_γ the forward-backward envelope

        1.  d = −H r_γ(x), H from L-BFGS pairs of x and r_γ; with few unknowns and a box, a Newton
            direction after n iterations
        2.  for τ = 1, ½, ¼:  x⁺ = (1 − τ) z + τ (x + d),
                γ ← 0.95/L, at least γ/10, if γL > 1 for the curvature L of ψ between x and x⁺,
                stop if γL ≤ 1, φ_γ(x⁺) ≤ φ_γ(x) − 0.01 γ‖r_γ(x)‖², and ψ(x⁺) is below a ceiling
                or ψ(z⁺) below its quadratic model
        3.  if none was accepted: drop the pairs, x⁺ = z, with γ shrunk until ψ(z) is below its
            quadratic model
        4.  γ ← min(2γ, 0.95/L̄), L̄ the largest curvature of the last m steps, if that is ≥ 1.5 γ
        5.  s = x⁺ − x, y = r_γ(x⁺) − r_γ(x); x = x⁺; z is the point yielded

    An iteration takes one gradient if the first trial is accepted. Envelopes are compared only
    where γL ≤ 1. Unlike in PANOC⁺, ψ(z⁺) is evaluated to validate γ only if ψ(x⁺) is above ψ(x_1),
    and above its lowest value so far by more than 100 γ‖r‖² or above ψ(x_1) by more than ten times
    its decrease so far. Elsewhere ψ is bounded, and φ_γ decreases at every iteration either way.
    Near a kink of ∇ψ the curvature test shortens γ before an envelope with too long a γ can show a
    decrease that is not there, and step 4 lengthens γ again once the kink is m steps behind.

    Guarantee: r tends to 0 if ψ has a Lipschitz gradient on a bounded set that contains the
    iterates and step 4 lengthens γ finitely often. There is no rate for Hölder-smooth ψ, where only
    the residual shows convergence.

    Reference: Stella, Themelis, Sopasakis, Patrinos 2017, Algorithm 1; De Marchi, Themelis 2022.

    Args:
        memory: number m of L-BFGS pairs, at least 1.
        step_1: first trial of γ, > 0; None for a short step along the gradient.
        newton: largest number of unknowns for Newton directions, where g is a box; 0 for none.
    """

    memory: int = 7
    step_1: float | None = None
    newton: int = 0

    def __post_init__(self) -> None:
        if self.memory < 1:
            raise ValueError(f"memory must be at least 1, got {self.memory!r}")
        if self.step_1 is not None and not self.step_1 > 0:
            raise ValueError(f"step_1 must be positive, got {self.step_1!r}")
        if self.newton < 0:
            raise ValueError(f"newton must be nonnegative, got {self.newton!r}")

    def iterate(self, psi: Smooth, g: Proximable, x: Tensor, tol: float) -> Iterator[Iterate]:
        """Yield z of every iteration."""
        estimate, lbfgs = ResidualEstimate(tol), LBFGS(x, self.memory)
        curvatures: deque[float] = deque(maxlen=self.memory)
        psi_x, grad_x = psi.value_and_grad(x)
        step_1 = self.step_1 or short_step(x, grad_x)
        at = prox_step(g, x, psi_x, grad_x, step_1)
        newton = _Newton(g, x, self.newton)
        psi_1, lowest, ceiling = psi_x, math.inf, math.inf
        while True:
            yield estimate.iterate(psi, at)
            if at.psi_x <= lowest:
                lowest, rise = at.psi_x, _RISE * at.step * at.r_sq
                highest = psi_1 + _RISE_ABOVE_START * (psi_1 - lowest)
                ceiling = max(psi_1, min(lowest + rise, highest))
            at, found = newton.search(psi, g, at, ceiling)
            if found is None and lbfgs.size:
                at, found = _quasi_newton(psi, g, at, lbfgs.direction(at.r), ceiling)
            if found is None:
                lbfgs.reset()
                at, found = _descend(psi, g, at, _SHORTEST * step_1)
            if found is None:
                return
            at_next = found.at_next
            curvatures.append(found.L)
            # The first γ is a guess that may be off by any factor.
            growth = 2.0 if len(curvatures) > 1 or self.step_1 else 1e6
            bound = _SAFETY / (max(curvatures) or _SAFETY / (_LONGEST * step_1))
            longest = min(growth * at.step, bound)
            lbfgs.update(found.s, at.r, at_next.r)
            newton.update(found.s, at.grad_x, at_next.grad_x)
            at = _with_step(g, at_next, longest) if longest >= _MIN_GROWTH * at.step else at_next


class _Accepted(NamedTuple):
    """An accepted point: the prox step from it, s = x⁺ − x, and the curvature of ψ along s."""

    at_next: ProxStep
    s: Tensor
    L: float


_Search = tuple[ProxStep, _Accepted | None]


class _Newton:
    """Newton directions from a dense Hessian, which is computed anew after n iterations.

    So it takes at most as many gradients as the iterations do. A direction that fails to give a
    point ends the use of its Hessian, and the next one is computed after twice as many iterations.

    Args:
        g: the proximable term.
        x: the start.
        largest: number of unknowns above which there are no such directions.
    """

    def __init__(self, g: Proximable, x: Tensor, largest: int) -> None:
        self.period = max(2, x.numel()) if is_suited(g, x, largest) else math.inf
        self.iterations = 0  # since the last Hessian
        self.hessian: DenseHessian | None = None

    def search(self, psi: Smooth, g: Proximable, at: ProxStep, ceiling: float) -> _Search:
        """Search between the Newton point and z, if there is a Hessian."""
        if self.iterations >= self.period:
            hessian, self.iterations = DenseHessian(psi, at), 0
            self.hessian = hessian if hessian.is_finite else None
        self.iterations += 1
        d = None if self.hessian is None else self.hessian.direction(at)
        if d is None:
            return at, None
        at, found = _quasi_newton(psi, g, at, d, ceiling, newton=True)
        if found is None:
            self.hessian, self.period = None, 2 * self.period
        return at, found

    def update(self, s: Tensor, grad_x: Tensor, grad_next: Tensor) -> None:
        """Correct the Hessian by the step taken."""
        if self.hessian is not None:
            self.hessian.update(s, grad_next - grad_x)


def _quasi_newton(
    psi: Smooth, g: Proximable, at: ProxStep, d: Tensor, ceiling: float, *, newton: bool = False
) -> _Search:
    """Search between x + d and z; also return the prox step from x with its γ.

    If every trial is refused, γ is what it was: curvature far away says nothing about a step to z.
    Newton points are inside dom g, and since they do not depend on γ, every trial may shrink it as
    it needs.
    """
    first, margin = at, rounding(at.x, at.psi_x)
    for tau in _NEWTON_WEIGHTS if newton else _WEIGHTS:
        at = first if newton else at
        s = d if tau == 1 else torch.lerp(at.z - at.x, d, tau)
        x_next = at.x + s
        if newton:
            x_next = g.prox(x_next, at.step)
            s = x_next - at.x
        psi_next, grad_next = psi.value_and_grad(x_next)
        L = curvature(s, at.grad_x, grad_next)
        if 1 < at.step * L < math.inf:
            at = _with_step(g, at, max(0.0 if newton else _SHRINK * at.step, _SAFETY / L))
        if not at.step * L <= 1:
            continue
        at_next = prox_step(g, x_next, psi_next, grad_next, at.step)
        if not at_next.envelope <= at.envelope - _DECREASE * at.step * at.r_sq + margin:
            continue
        if psi_next <= ceiling or _is_valid(at_next, psi.value_and_grad(at_next.z)[0], margin):
            return at, _Accepted(at_next, s, L)
        at = _with_step(g, at, 0.5 * at.step)
    return first, None


def _descend(psi: Smooth, g: Proximable, at: ProxStep, shortest: float) -> _Search:
    """Move to z, with γ shrunk until ψ(z) is below its model or γ falls below `shortest`."""
    margin = rounding(at.x, at.psi_x)
    while at.step > shortest:
        psi_z, grad_z = psi.value_and_grad(at.z)
        s = at.z - at.x
        L = curvature(s, at.grad_x, grad_z)
        if _is_valid(at, psi_z, margin) and L < math.inf:
            return at, _Accepted(prox_step(g, at.z, psi_z, grad_z, at.step), s, L)
        excess = psi_z - at.psi_x - at.slope
        shrink = _SAFETY * at.step * at.r_sq / (2 * excess) if excess > 0 else 0.1
        at = _with_step(g, at, at.step * min(0.5, max(0.1, shrink)))
    return at, None


def _is_valid(at: ProxStep, psi_z: float, margin: float) -> bool:
    """Whether ψ(z) is below the quadratic model at x, so that the envelope bounds (ψ + g)(z)."""
    distance_sq = at.step * at.step * at.r_sq
    return under_model(psi_z, at.psi_x, at.slope, distance_sq, at.step / _SAFETY, margin)


def _with_step(g: Proximable, at: ProxStep, step: float) -> ProxStep:
    return prox_step(g, at.x, at.psi_x, at.grad_x, step)
