"""The proximal gradient step, its envelope, and a first guess of its length."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torch_powalm.prox import Proximable
from torch_powalm.solvers.base import Smooth


class ProxStep(NamedTuple):
    """A step z = prox_{γg}(x − γ∇ψ(x)) from x, with quantities that are computed once.

    Args:
        x: start of the step.
        psi_x: ψ(x).
        grad_x: ∇ψ(x).
        step: γ.
        z: end of the step.
        r: (x − z)/γ, the fixed-point residual.
        r_sq: ‖r‖².
        slope: ⟨∇ψ(x), z − x⟩.
        envelope: ψ(x) + ⟨∇ψ(x), z − x⟩ + ‖z − x‖²/(2γ) + g(z), the forward-backward envelope.
    """

    x: Tensor
    psi_x: float
    grad_x: Tensor
    step: float
    z: Tensor
    r: Tensor
    r_sq: float
    slope: float
    envelope: float


def prox_step(g: Proximable, x: Tensor, psi_x: float, grad_x: Tensor, step: float) -> ProxStep:
    """Take a proximal gradient step of length `step` from x."""
    z = g.prox(torch.sub(x, grad_x, alpha=step), step)
    r = torch.sub(x, z).mul_(1 / step)
    r_sq = dot(r, r)
    slope = -step * dot(grad_x, r)
    g_z = 0.0 if g.is_indicator else g.value(z)
    envelope = psi_x + slope + 0.5 * step * r_sq + g_z
    return ProxStep(x, psi_x, grad_x, step, z, r, r_sq, slope, envelope)


def dot(a: Tensor, b: Tensor) -> float:
    """Return ⟨a, b⟩ for two tensors of the same shape."""
    if a.ndim != 1:
        a, b = a.reshape(-1), b.reshape(-1)
    return torch.dot(a, b).item()


def curvature(s: Tensor, grad_x: Tensor, grad_next: Tensor) -> float:
    """Return ‖∇ψ(x + s) − ∇ψ(x)‖/‖s‖, 0 if s = 0 and inf if a gradient is not finite."""
    change = grad_next - grad_x
    s_sq, change_sq = dot(s, s), dot(change, change)
    if not math.isfinite(change_sq):
        return math.inf
    return math.sqrt(change_sq / s_sq) if s_sq > 0 else 0.0


def short_step(x: Tensor, grad_x: Tensor) -> float:
    """Return the γ for which γ‖∇ψ(x)‖ is a hundredth of ‖x‖, or 1e-5 near the origin."""
    length = 1e-2 * max(math.sqrt(dot(x, x)), 1e-3)
    norm = math.sqrt(dot(grad_x, grad_x))
    return length / norm if 0 < norm < math.inf else 1.0


def first_step(psi: Smooth, g: Proximable, x: Tensor, grad_x: Tensor) -> float:
    """Return 1/L for the curvature L of ψ between x and a short step from x; takes one gradient."""
    step = short_step(x, grad_x)
    z = g.prox(torch.sub(x, grad_x, alpha=step), step)
    L = curvature(z - x, grad_x, psi.value_and_grad(z)[1])
    return 1 / L if 0 < L < math.inf else step
