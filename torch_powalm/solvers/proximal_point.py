"""Inexact proximal point method on top of a method for strongly convex problems."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torch_powalm.prox import Proximable
from torch_powalm.solvers.adaptive_gradient import AdaptiveGradient
from torch_powalm.solvers.base import Iterate, Smooth, Solver, run
from torch_powalm.solvers.prox_gradient import dot, first_step


@dataclass(frozen=True)
class ProximalPoint:
    """Inexact proximal point (iPPM), for weakly convex ψ and any g that the inner method accepts.

        1.  F = ψ + ρ‖· − center‖²,  x from the inner method with dist(0, ∂(F + g)(x)) ≤ ε/4
        2.  stop if 2ρ‖x − center‖ ≤ ε/2, otherwise center = x

    An iteration is one proximal point. It yields x with the residual
    max(4 dist(0, ∂(F + g)(x)), 4ρ‖x − center‖), an upper bound of the true one that is at most ε if
    and only if both tests hold, so `run` ends there. Ctrl-C keeps the last complete proximal point.

    If rho is None, ρ starts at a tenth of the curvature of ψ at the start. Whenever two successive
    gradients show a negative curvature −⟨Δ∇ψ, Δx⟩/‖Δx‖² above ρ, ρ becomes twice that value and
    the center stays. After every proximal point ρ is halved as far as the curvature seen allows.

    Guarantee: at most 32ρ(ψ(x_1) − min)/ε² + 1 proximal points if ψ is ρ-weakly convex and the
    domain of g is bounded; each is a strongly convex problem.

    Reference: paper, Algorithm 2.

    Args:
        rho: proximal weight ρ, > 0, at least the constant of weak convexity of ψ; None to estimate.
        inner: method for the strongly convex problems.
        max_inner: iterations of the inner method after which the center moves anyway, ≥ 1.
    """

    rho: float | None = None
    inner: Solver = field(default_factory=AdaptiveGradient)
    max_inner: int = 1000

    def __post_init__(self) -> None:
        if self.rho is not None and not self.rho > 0:
            raise ValueError(f"rho must be positive, got {self.rho!r}")
        if self.max_inner < 1:
            raise ValueError(f"max_inner must be at least 1, got {self.max_inner!r}")

    def iterate(self, psi: Smooth, g: Proximable, x: Tensor, tol: float) -> Iterator[Iterate]:
        """Yield every proximal point."""
        rho = rho_1 = self.rho or 0.1 / first_step(psi, g, x, psi.value_and_grad(x)[1])
        center = x
        while True:
            F = _Regularized(psi, center, rho)
            # A nested run, since the last inner steps hardly change the bound yielded below.
            found = run(
                self.inner,
                F,
                g,
                x,
                tol=tol / 4,
                max_iter=self.max_inner,
                stop=F.is_concave if self.rho is None else None,
            )
            x = found.x
            moved = torch.linalg.vector_norm(x - center).item()
            bound = max(4 * found.residual, 4 * rho * moved)
            yield Iterate(x, bound, F.value(x) + g.value(x))
            if self.rho is None and F.is_concave():
                rho = 2 * F.concavity
                continue
            center = x
            if self.rho is None:
                rho = max(rho / 2, 2 * F.concavity, 1e-6 * rho_1)


class _Regularized:
    """F(x) = ψ(x) + ρ‖x − center‖², and the largest negative curvature of ψ seen so far."""

    def __init__(self, psi: Smooth, center: Tensor, rho: float) -> None:
        self.psi = psi
        self.center = center
        self.rho = rho
        self.concavity = 0.0
        self.last: tuple[Tensor, Tensor] | None = None

    def is_concave(self) -> bool:
        """Whether ρ has proved too small for F to be convex."""
        return self.concavity > self.rho

    def value(self, x: Tensor) -> float:
        d = x - self.center
        return self.psi.value(x) + self.rho * dot(d, d)

    def value_and_grad(self, x: Tensor) -> tuple[float, Tensor]:
        psi_x, grad_x = self.psi.value_and_grad(x)
        self._observe(x, grad_x)
        d = x - self.center
        return psi_x + self.rho * dot(d, d), torch.add(grad_x, d, alpha=2 * self.rho)

    def _observe(self, x: Tensor, grad_x: Tensor) -> None:
        if self.last is not None:
            s = x - self.last[0]
            concavity = -dot(s, grad_x - self.last[1])
            s_sq = dot(s, s)
            if concavity > 0 and math.isfinite(concavity) and s_sq > 0:
                self.concavity = max(self.concavity, concavity / s_sq)
        self.last = (x, grad_x)
