"""Adaptive accelerated gradient of Malitsky and Mishchenko."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from torch_powalm.prox import Proximable
from torch_powalm.solvers.backtracking import rounding
from torch_powalm.solvers.base import Iterate, Smooth
from torch_powalm.solvers.prox_gradient import curvature, first_step, prox_step
from torch_powalm.solvers.residual_estimate import ResidualEstimate

_SHORTEST = 1e-30  # relative to the first step: the safeguard has failed


@dataclass(frozen=True)
class AdaptiveGradient:
    """Adaptive accelerated proximal gradient, for locally smooth ψ and any proximable g.

        L_k = ‖∇ψ(x_k) − ∇ψ(x_{k−1})‖/‖x_k − x_{k−1}‖

        1.  λ_k = min(√(1 + θ_{k−1}/2) λ_{k−1}, c/L_k),   θ_k = λ_k/λ_{k−1}    a local step
            Λ_k = min(√(1 + Θ_{k−1}/2) Λ_{k−1}, L_k/2),   Θ_k = Λ_k/Λ_{k−1}    a local convexity
        2.  z_{k+1} = prox_{λ_k g}(x_k − λ_k ∇ψ(x_k))
        3.  safeguard: if the forward-backward envelope at x_k exceeds its last M values, return to
            the best x so far and take a step without momentum; if this step had none, c ← c/2
        4.  b_k = (√(1/λ_k) − √Λ_k)/(√(1/λ_k) + √Λ_k),   x_{k+1} = z_{k+1} + b_k (z_{k+1} − z_k)

    c = 1/2 at first. It yields z. An iteration takes one gradient and no further value, and a
    second gradient only to certify the residual. No constant of ψ is needed.

    Guarantee: none; it is a heuristic for strongly convex ψ. The safeguard catches runs that do not
    descend, and the residual shows convergence.

    Reference: Malitsky, Mishchenko 2020, Algorithm 2, with a prox in its gradient step.

    Args:
        history: number M of values in the safeguard, at least 1.
        step_1: first step λ, > 0; None for half the inverse curvature along a short step.
    """

    history: int = 10
    step_1: float | None = None

    def __post_init__(self) -> None:
        if self.history < 1:
            raise ValueError(f"history must be at least 1, got {self.history!r}")
        if self.step_1 is not None and not self.step_1 > 0:
            raise ValueError(f"step_1 must be positive, got {self.step_1!r}")

    def iterate(self, psi: Smooth, g: Proximable, x: Tensor, tol: float) -> Iterator[Iterate]:
        """Yield z of every iteration."""
        estimate = ResidualEstimate(tol)
        psi_x, grad_x = psi.value_and_grad(x)
        step = step_1 = self.step_1 or 0.5 * first_step(psi, g, x, grad_x)
        at = best = prox_step(g, x, psi_x, grad_x, step)
        envelopes = deque([at.envelope], maxlen=self.history)
        convexity, theta, big_theta = 0.5 / step, 1.0, 1.0
        limit, has_momentum, z_prev = 0.5, False, at.z
        while step > _SHORTEST * step_1:
            if at.envelope <= max(envelopes) + rounding(x, psi_x):
                yield estimate.iterate(psi, at)
                envelopes.append(at.envelope)
                best = min(best, at, key=lambda b: b.envelope)
                root, root_convexity = math.sqrt(1 / step), math.sqrt(convexity)
                b = (root - root_convexity) / (root + root_convexity)
                x_next = at.z.add(at.z - z_prev, alpha=b)
                z_prev, has_momentum = at.z, True
            else:
                if not has_momentum:
                    limit, step, theta = limit / 2, step / 2, 1.0
                    best = prox_step(g, best.x, best.psi_x, best.grad_x, step)
                    # Envelopes of two steps are not comparable: a longer step has a lower one.
                    envelopes = deque([best.envelope], maxlen=self.history)
                at, x_next, z_prev, has_momentum = best, best.z, best.z, False
            psi_next, grad_next = psi.value_and_grad(x_next)
            L = curvature(x_next - at.x, at.grad_x, grad_next)
            step_next, convexity_next = step, convexity
            if 0 < L < math.inf:
                step_next = min(math.sqrt(1 + theta / 2) * step, limit / L)
                convexity_next = min(math.sqrt(1 + big_theta / 2) * convexity, L / 2)
            theta, big_theta = step_next / step, convexity_next / convexity
            step, convexity = step_next, convexity_next
            at = prox_step(g, x_next, psi_next, grad_next, step)
