"""Fast gradient method for strongly convex, Hölder-smooth functions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_powalm.prox import Proximable
from torch_powalm.solvers.base import Iterate, Smooth
from torch_powalm.solvers.prox_gradient import prox_step
from torch_powalm.solvers.residual_estimate import ResidualEstimate


@dataclass(frozen=True)
class FastGradient:
    """Fast gradient method, for ρ-strongly convex ψ with ‖∇ψ(a) − ∇ψ(b)‖ ≤ H‖a − b‖^ν.

        L = H (H/(2δ) · (1−ν)/(1+ν))^((1−ν)/(1+ν)),  μ = ρ,  S_k = Σ_{i≤k} α_i,  α_0 = 1,
        L + μ S_k = L α_{k+1}²/S_{k+1}

        1.  y_k = prox_{g/L}(x_k − ∇ψ(x_k)/L)
        2.  z_k = prox_{S_k g/(L + μS_k)}((L x_0 + Σ_{i≤k} α_i (μ x_i − ∇ψ(x_i)))/(L + μS_k))
        3.  x_{k+1} = τ_k z_k + (1 − τ_k) y_k,  τ_k = α_{k+1}/S_{k+1}

    It yields y_k. An iteration takes one gradient and two proxes. S_k grows geometrically, so the
    code keeps c_k = L/S_k + μ instead, with L τ_k² = (1 − τ_k) c_k, and the argument of step 2 as a
    running average.

    Guarantee: ψ + g at y_k converges linearly to its minimum, up to an error of the order of δ, for
    the indicator g of a closed convex set (the paper's case) or any other proximable g. It may
    diverge if H is too small or ρ too large.

    Reference: paper, Algorithm 4; Devolder, Glineur, Nesterov 2014, Algorithm 3.

    Args:
        rho: constant of strong convexity, > 0.
        holder: Hölder constant H of ∇ψ, > 0.
        nu: Hölder exponent of ∇ψ, in (0, 1]; 1 for a Lipschitz gradient.
        delta: accuracy δ of the oracle, > 0; no effect if nu is 1.
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
        estimate = ResidualEstimate(tol)
        q = (1 - self.nu) / (1 + self.nu)
        L, mu = self.holder * (self.holder / (2 * self.delta) * q) ** q, self.rho
        psi_x, grad_x = psi.value_and_grad(x)
        c = L + mu
        average = x + torch.sub(mu * x, grad_x).sub_(mu * x).div_(c)
        while True:
            at = prox_step(g, x, psi_x, grad_x, 1 / L)
            yield estimate.iterate(psi, at)
            z = g.prox(average, 1 / c)
            tau = (math.sqrt(c * c + 4 * L * c) - c) / (2 * L)
            x = torch.lerp(at.z, z, tau)
            psi_x, grad_x = psi.value_and_grad(x)
            c_next = (1 - tau) * (c - mu) + mu
            average = average.mul_((1 - tau) * c / c_next)
            average.add_(x, alpha=tau * mu / c_next).sub_(grad_x, alpha=tau / c_next)
            c = c_next
