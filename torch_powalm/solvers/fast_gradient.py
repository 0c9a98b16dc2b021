"""Fast gradient method for strongly convex, Hölder-smooth functions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_powalm.prox import Proximable
from torch_powalm.solvers.base import Iterate, Smooth
from torch_powalm.solvers.certificate import Certificate
from torch_powalm.solvers.prox_gradient import prox_step


@dataclass(frozen=True)
class FastGradient:
    """Fast gradient method, for ρ-strongly convex ψ with ‖∇ψ(a) − ∇ψ(b)‖ ≤ H‖a − b‖^ν.

        L = H (H/(2δ) · (1−ν)/(1+ν))^((1−ν)/(1+ν)),  μ = ρ,  S_k = Σ_{i≤k} α_i,  α_0 = 1,
        L + μ S_k = L α_{k+1}²/S_{k+1}

        1.  y_k = prox_{g/L}(x_k − ∇ψ(x_k)/L)
        2.  z_k = prox_{S_k g/(L + μS_k)}((L x_0 + Σ_{i≤k} α_i (μ x_i − ∇ψ(x_i)))/(L + μS_k))
        3.  x_{k+1} = τ_k z_k + (1 − τ_k) y_k,  τ_k = α_{k+1}/S_{k+1}

    It shows y_k. One gradient per iteration, two prox. S_k grows geometrically; the code carries
    c_k = L/S_k + μ instead, in which L τ_k² = (1 − τ_k) c_k, and the argument of step 2 as a
    running average.

    Guarantee: ψ + g at y_k reaches its minimum up to an error of the order of δ, linearly, for the
    indicator g of a closed convex set (the paper's case) or another proximable g. Too small an H
    or too large a ρ may make it diverge.

    Reference: paper, Algorithm 4; Devolder, Glineur, Nesterov 2014, Algorithm 3.

    Args:
        rho: constant of strong convexity, > 0.
        holder: Hölder constant H of ∇ψ, > 0.
        nu: Hölder exponent of ∇ψ, in (0, 1]; 1 for a Lipschitz gradient.
        delta: accuracy of the oracle δ, > 0; without effect if nu is 1.
    """

    rho: float
    holder: float
    nu: float = 1.0
    delta: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("rho", "holder", "delta"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ValueError(f"{name} must be positive, got {value!r}")
        if not 0 < self.nu <= 1:
            raise ValueError(f"nu must be in (0, 1], got {self.nu!r}")

    def iterate(self, psi: Smooth, g: Proximable, x: Tensor, tol: float) -> Iterator[Iterate]:
        """Yield y_k of every iteration."""
        certificate = Certificate(tol)
        q = (1 - self.nu) / (1 + self.nu)
        L, mu = self.holder * (self.holder / (2 * self.delta) * q) ** q, self.rho
        psi_x, grad_x = psi.value_and_grad(x)
        c = L + mu
        average = x + torch.sub(mu * x, grad_x).sub_(mu * x).div_(c)
        while True:
            at = prox_step(g, x, psi_x, grad_x, 1 / L)
            yield certificate.iterate(psi, at)
            z = g.prox(average, 1 / c)
            tau = (math.sqrt(c * c + 4 * L * c) - c) / (2 * L)
            x = torch.lerp(at.z, z, tau)
            psi_x, grad_x = psi.value_and_grad(x)
            c_next = (1 - tau) * (c - mu) + mu
            average = average.mul_((1 - tau) * c / c_next)
            average.add_(x, alpha=tau * mu / c_next).sub_(grad_x, alpha=tau / c_next)
            c = c_next
