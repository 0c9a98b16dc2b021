"""PenaltyModel: ψ near a point, with r linearized and the Lagrangian quadratic."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torch_powalm.dual import DualState
from torch_powalm.functional import norm


class Expansion(NamedTuple):
    """First derivatives at a point: x and ∇f flat, the constraints r and their Jacobian J."""

    x: Tensor
    grad_f: Tensor
    r: Tensor
    J: Tensor


class PenaltyModel:
    """m(d) = ⟨∇f, d⟩ + ½⟨d, Bd⟩ + ⟨y, u⟩ + βφ(u), with u of r + Jd and its slacks eliminated.

    Its Hessian is B + Jᵀ∇²(βφ)J over the active constraints, so that a step knows how stiff the
    penalty is and which constraints become active.

    Args:
        at: first derivatives at the point.
        B: approximation of ∇²f + Σ w_i ∇²r_i.
        dual: y, β and ν.
    """

    def __init__(self, at: Expansion, B: Tensor, dual: DualState) -> None:
        self.at, self.B, self.dual = at, B, dual
        self._r = at.r
        self._w = torch.zeros_like(at.r)

    def value_and_grad(self, d: Tensor) -> tuple[float, Tensor]:
        """m(d) and ∇m(d); inf where a weight is not finite."""
        at, Bd = self.at, torch.mv(self.B, d)
        value = torch.dot(d, at.grad_f + 0.5 * Bd).item()
        grad = at.grad_f + Bd
        if len(at.r) == 0:
            return value, grad
        self._r = torch.addmv(at.r, at.J, d)
        terms = self.dual.value_and_weight(self._r)
        if terms is None:
            return math.inf, grad
        self._w = terms[1]
        return value + terms[0], torch.addmv(grad, at.J.T, self._w)

    def hessian(self, d: Tensor) -> Tensor:
        """∇²m at the last point that was evaluated."""
        R = self._penalty_root()
        return self.B if R is None else torch.addmm(self.B, R.T, R)

    def _penalty_root(self) -> Tensor | None:
        """R with RᵀR = Jᵀ∇²(βφ)J over the active constraints; None if none is active."""
        dual, J, w = self.dual, self.at.J, self._w
        if len(w) == 0:
            return None
        active = torch.ones_like(w, dtype=torch.bool)
        if dual.inequality is not None:
            active = ~dual.inequality | (w > 0)
            if not active.any():
                return None
            J = J[active]
        if dual.nu == 1:
            return math.sqrt(dual.beta) * J
        # ∇²(βφ) = c (I − (1 − ν) u uᵀ/‖u‖²), c u = w − y, and c = β‖u‖^(ν−1).
        u_norm, force = dual.residual_norm(self._r), (w - dual.y)[active]
        c = dual.beta * max(u_norm, 1e-12) ** (dual.nu - 1)
        size = norm(force)
        unit = force / size if size > 0 else force
        return math.sqrt(c) * (J - (1 - math.sqrt(dual.nu)) * torch.outer(unit, unit @ J))
