"""Dense Hessian of ψ for few unknowns: differences of gradients, corrected by the steps taken."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_powalm.prox import Bounded, Proximable, Zero
from torch_powalm.solvers.base import Smooth
from torch_powalm.solvers.prox_gradient import ProxStep, dot

_DIFFERENCE = 1e-7  # length of a difference, relative to an entry of x or to their mean square
_SMALLEST = 1e-10  # eigenvalue relative to the largest one: flatter directions count as this steep
_SR1 = 1e-8  # cosine below which a correction would be noise


def is_suited(g: Proximable, x: Tensor, largest: int) -> bool:
    """Whether x has few entries in double precision on the CPU, and g only bounds them."""
    few = 0 < x.numel() <= largest and x.dtype == torch.float64 and x.is_cpu
    is_box = isinstance(g, Bounded) and g.is_indicator and isinstance(g.bounds, tuple)
    return few and (isinstance(g, Zero) or is_box)


class DenseHessian:
    """H ≈ ∇²ψ and Newton directions on the variables off their bounds.

        F = variables that the prox leaves alone at z,   d = z − x outside F,
        |H_FF| d_F = −∇ψ_F − H_FN d_N

    |H| has the absolute eigenvalues of H, so that d leaves saddle points and maxima. A column is
    one more gradient; columns outside F are not computed and taken as those of 1/γ times the
    identity, except for what symmetry tells. Steps correct H by symmetric rank-one updates.

    Args:
        psi: the function.
        at: the prox step from the point.
    """

    def __init__(self, psi: Smooth, at: ProxStep) -> None:
        x, grad = at.x.reshape(-1), at.grad_x.reshape(-1)
        n = len(x)
        free = _free(at)
        typical = math.sqrt(dot(x, x) / n) or 1.0
        self.H = torch.zeros(n, n, dtype=x.dtype)
        for i in free.nonzero().reshape(-1).tolist():
            h = _DIFFERENCE * max(abs(float(x[i])), typical)
            if at.z.reshape(-1)[i] < x[i]:
                h = -h  # toward z, which is inside the bounds
            shifted = x.clone()
            shifted[i] += h
            _, grad_next = psi.value_and_grad(shifted.view_as(at.x))
            self.H[:, i] = (grad_next.reshape(-1) - grad) / (shifted[i] - x[i])
        rest = ~free
        self.H[:, rest] = self.H[rest, :].T
        self.H[rest[:, None] & rest] = 0.0
        self.H.diagonal()[rest] = 1 / at.step
        self.H = (self.H + self.H.T) / 2
        self.is_finite = bool(self.H.isfinite().all())

    def direction(self, at: ProxStep) -> Tensor | None:
        """The Newton direction at a point; None if it is not finite."""
        free = _free(at)
        d = (at.z - at.x).reshape(-1).clone()
        if free.any():
            right = -(at.grad_x.reshape(-1)[free] + self.H[free][:, ~free] @ d[~free])
            values, vectors = torch.linalg.eigh(self.H[free][:, free])
            steep = values.abs()
            steep = steep.clamp(min=max(_SMALLEST * float(steep.max()), 1e-300))
            d[free] = vectors @ ((vectors.T @ right) / steep)
        return d.view_as(at.x) if d.isfinite().all() else None

    def update(self, s: Tensor, change: Tensor) -> None:
        """Correct H so that it maps the step s to the change of the gradient."""
        s, change = s.reshape(-1), change.reshape(-1)
        error = change - self.H @ s
        product, norms = dot(s, error), math.sqrt(dot(s, s) * dot(error, error))
        if abs(product) > _SR1 * norms and math.isfinite(norms):
            self.H += torch.outer(error, error) / product


def _free(at: ProxStep) -> Tensor:
    """Which entries of z are those of x − γ∇ψ(x)."""
    forward = torch.sub(at.x, at.grad_x, alpha=at.step)
    return (at.z == forward).reshape(-1)
