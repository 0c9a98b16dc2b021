"""The residual after a proximal gradient step."""

from __future__ import annotations

import math

import torch

from torch_powalm.solvers.base import Iterate, Smooth
from torch_powalm.solvers.prox_gradient import ProxStep


class ResidualEstimate:
    """Residual at z = prox_{γg}(x − γ∇ψ(x)), with a gradient at z only if it can end the run.

        r = (x − z)/γ,     v = r + ∇ψ(z) − ∇ψ(x) ∈ ∂(ψ + g)(z)

    Methods that extrapolate have no other use for ∇ψ(z). It is computed if q‖r‖ ≤ tol, where q is
    the last known ratio ‖v‖/‖r‖, at least 1; otherwise ‖r‖ serves as an estimate.

    Args:
        tol: the tolerance, > 0.
    """

    def __init__(self, tol: float) -> None:
        self.tol = tol
        self.ratio = 1.0

    def iterate(self, psi: Smooth, at: ProxStep) -> Iterate:
        """Return z with its residual ‖v‖, or with the estimate ‖r‖."""
        r_norm = math.sqrt(at.r_sq)
        if not self.ratio * r_norm <= self.tol:
            return Iterate(at.z, r_norm, at.envelope, certified=False)
        _, grad_z = psi.value_and_grad(at.z)
        residual = torch.linalg.vector_norm(at.r + grad_z - at.grad_x).item()
        if r_norm > 0 and math.isfinite(residual):
            self.ratio = max(1.0, residual / r_norm)
        return Iterate(at.z, residual, at.envelope)
