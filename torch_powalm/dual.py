"""DualState: multiplier y and penalty β of both routes, and the only method that changes them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_powalm.checks.dual_settings import BETA_LIMIT, check_settings
from torch_powalm.functional import (
    augmented_lagrangian,
    eliminate_slack,
    norm,
    rescale,
    scaled_add,
    slack_stiffness,
    step_size,
    stiffness,
    violation,
)
from torch_powalm.result import DualRecord


class DualState:
    """Multiplier y, penalty β and counter k, with their update rules.

        w(r) = y + β∇φ(r)                     what multiplies the Jacobian
        y ← y + σ∇φ(r),   β ← ωβ,   k ← k + 1

    r = (A(x), B(x)) is a flat vector. Slacks of inequalities are eliminated exactly; y ≥ 0 there.
    With a scale s the penalty is βφ(s r); y stays in the user's units, as the price of a unit of r.

    Args:
        nu: exponent ν of the penalty, in (0, 1]; 1 is the classical method.
        beta_1: first penalty, > 0.
        omega: growth of the penalty, ≥ 1.
        sigma: rule of σ: "penalty" (σ = β), "paper" (Algorithm 1), "sqrt" (σ_1/√(k+1)), or "pi"
            (σ = σ_1 on r itself: β is the proportional and σ_1 the integral gain).
        sigma_1: first dual step of the last three rules, ≥ 0.
        beta_max: largest penalty, ≥ beta_1.
        y_max: largest absolute entry of y, > 0.
        sufficient_decrease: β grows only if ‖r‖ has not fallen by this factor in (0, 1), or None.
    """

    def __init__(
        self,
        *,
        nu: float,
        beta_1: float,
        omega: float,
        sigma: str,
        sigma_1: float,
        beta_max: float,
        y_max: float,
        sufficient_decrease: float | None,
    ) -> None:
        check_settings(nu, beta_1, omega, sigma, sigma_1, beta_max, y_max, sufficient_decrease)
        self.nu, self.beta_1, self.omega = float(nu), float(beta_1), float(omega)
        self.sigma, self.sigma_1 = sigma, float(sigma_1)
        self.beta_max, self.y_max = float(beta_max), float(y_max)
        self.sufficient_decrease = sufficient_decrease
        self.started, self.beta, self.k = False, self.beta_1, 1
        self.scale: Tensor | None = None  # factor of every entry of r; None for 1
        self.y = self._y = torch.empty(0)  # one entry per constraint once started; _y = y / scale
        self.far = math.inf  # beyond this norm of scaled violations, the force is constant
        self.start_norm = 0.0  # ‖∇φ(r_1)‖ of the first r that is not 0
        self.last_norm = math.inf  # ‖r‖ at the last update
        self.inequality: Tensor | None = None  # which entries are inequalities; None if none is
        self.groups: list[slice] = []  # the parts of r that have their own norm
        self._lower: Tensor | None = None  # u = max(B, t·lower): −y, and −inf for equalities
        self._w_min: Tensor | None = None  # smallest weight: 0, and −inf for equalities

    def set_units(self, beta_1: float, sigma_1: float, far: float) -> None:
        """Set the first penalty and dual step, and how far the force of the penalty grows."""
        self.beta_1, self.sigma_1, self.far = min(beta_1, self.beta_max), sigma_1, far

    def start(
        self,
        r: Tensor,
        inequality: Tensor | None = None,
        groups: Sequence[slice] | None = None,
        scale: Tensor | None = None,
    ) -> None:
        """Set y = 0, β = β_1, k = 1 and remember ‖∇φ(r_1)‖.

        Args:
            r: (A(x_1), B(x_1)), flat.
            inequality: boolean mask of the entries that are inequalities; None if none is.
            groups: slices that cover r, each with its own norm; None for one norm over all.
            scale: factor of every entry of r, ≥ 0; None for 1.
        """
        self.scale = scale
        r = r if scale is None else r * scale
        self.inequality, self._lower, self._w_min = inequality, None, None
        self.groups = list(groups) if groups is not None else [slice(0, len(r))]
        if inequality is not None:
            self._w_min = torch.zeros_like(r).masked_fill(~inequality, -math.inf)
        self._move(torch.zeros_like(r))
        u = violation(r, inequality)  # the slacks are max(−B, 0) where y = 0
        norms = [norm(u[g]) for g in self.groups]
        self.last_norm = math.hypot(*norms)
        self.start_norm = math.hypot(*(n_i**self.nu for n_i in norms))
        self.started, self.beta, self.k = True, self.beta_1, 1

    def rescale(self, scale: Tensor) -> None:
        """Change the factors of r; y stays."""
        self.scale = scale
        self._move(self.y)

    def weight(self, r: Tensor) -> Tensor | None:
        """Weight w = y + β∇φ at r, 0 where an inequality is inactive; None if r is not finite."""
        if not self.started:
            return torch.zeros_like(r) if math.isfinite(norm(r)) else None
        r, _ = rescale(r, self.scale, self.inequality, self.far, self._y, self.beta, self.nu)
        parts = []
        for y, r_g, lower in self._split(r):
            r_norm = norm(r_g)
            if not math.isfinite(r_norm):
                return None
            c = slack_stiffness(r_g, r_norm, lower, self.beta, self.nu)
            parts.append(scaled_add(y, r_g, c))
        return self._in_user_units(parts)

    def value_and_weight(self, r: Tensor) -> tuple[float, Tensor] | None:
        """Return `value` and `weight`, sharing one norm; None if not finite."""
        if len(self.groups) > 1 or self._lower is not None or self.scale is not None:
            w = self.weight(r)
            return None if w is None else (self.value(r), w)
        r_norm = norm(r)
        value = augmented_lagrangian(0.0, r, self._y, self.beta, self.nu, r_norm)
        w = scaled_add(self._y, r, stiffness(r_norm, self.beta, self.nu))
        return (value, w) if math.isfinite(value) else None

    def value(self, r: Tensor) -> float:
        """Value ⟨y, r⟩ + βφ(r) that the constraints add to the objective, slacks eliminated."""
        if not self.started:
            return 0.0
        near, q = rescale(r, self.scale, self.inequality, self.far, self._y, self.beta, self.nu)
        value = sum(
            augmented_lagrangian(0.0, r_g, self._y[g], self.beta, self.nu)
            for g, r_g in zip(self.groups, self._pieces(near), strict=True)
        )
        if q < 1 and (w := self.weight(r)) is not None:
            value += (1 - q) * torch.dot(w, r).item()  # linear beyond `far`
        return value

    def tensors(self) -> dict[str, Tensor | None]:
        """Return what `weight` depends on besides β, ν, the groups and `far`, all scaled."""
        running = {"y": self._y, "lower": self._lower, "w_min": self._w_min}
        return running | {"scale": self.scale, "inequality": self.inequality}

    def residual_norm(self, r: Tensor) -> float:
        """‖r‖ with slacks eliminated, as the next update sees it."""
        r, _ = rescale(r, self.scale, self.inequality, self.far, self._y, self.beta, self.nu)
        return math.hypot(*map(norm, self._pieces(r)))

    def update(
        self,
        r: Tensor,
        *,
        hold: float | None = None,
        growth: float | None = None,
        part: Tensor | float | None = None,
    ) -> DualRecord:
        """Move y by σ∇φ(r), grow β, advance k.

        Args:
            r: (A(x), B(x)), finite.
            hold: factor of β, > 0, at an update that keeps y and disregards omega.
            growth: factor of β in place of omega, > 0.
            part: factor of the move of y, by entry or for all; None for 1.
        """
        if hold is not None:
            return self._advance(norm(r), 0.0, hold)
        A_norm = norm(violation(r, self.inequality))
        r, _ = rescale(r, self.scale, self.inequality, self.far, self._y, self.beta, self.nu)
        pieces = self._pieces(r)
        norms = [norm(r_i) for r_i in pieces]
        r_norm, step_norm = math.hypot(*norms), math.hypot(*(n_i**self.nu for n_i in norms))
        self.start_norm = self.start_norm or step_norm
        sigma = step_size(self.sigma, self.sigma_1, self.beta, self.start_norm, step_norm, self.k)
        if self.sigma == "pi":
            pieces = [r[g] for g in self.groups]
            norms = [norm(r_i) for r_i in pieces]
        parts = [
            scaled_add(self._y[g], r_i, sigma * stiffness(n_i, 1.0, self.nu))
            for g, r_i, n_i in zip(self.groups, pieces, norms, strict=True)
        ]
        y = self._in_user_units(parts)
        self._move(y if part is None else self.y + part * (y - self.y))
        enough, fallen_from, self.last_norm = self.sufficient_decrease, self.last_norm, r_norm
        if enough is not None and r_norm <= enough * fallen_from:
            return self._advance(A_norm, sigma, 1.0)
        return self._advance(A_norm, sigma, self.omega if growth is None else growth)

    def _advance(self, A_norm: float, sigma: float, growth: float) -> DualRecord:
        record = DualRecord(self.k, A_norm, self.beta, sigma, norm(self.y))
        self.beta = min(growth * self.beta, self.beta_max, BETA_LIMIT)
        self.k += 1
        return record

    def state_dict(self) -> dict[str, Any]:
        """Return the running values; the settings belong to the constructor."""
        return {name: getattr(self, name) for name in ("y", "beta", "k", "start_norm", "last_norm")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the values of a state of the same size; its y is None if not started."""
        if state["y"] is None:
            self.started, self.y = False, torch.empty(0)
        else:
            self._move(state["y"].detach().clone())
        self.beta, self.k = float(state["beta"]), int(state["k"])
        self.start_norm, self.last_norm = float(state["start_norm"]), float(state["last_norm"])

    def take_over(self, other: "DualState") -> None:
        """Become equal to another state."""
        self.__dict__.update(other.__dict__)

    def _move(self, y: Tensor) -> None:
        """Set y, at most y_max, y / scale, and the lower bound of u that follows from it."""
        self.y = self._y = y = y.clamp(-self.y_max, self.y_max)
        if self.scale is not None:
            self._y = torch.where(self.scale > 0, y / self.scale, 0.0)
        if self.inequality is not None:
            self._lower = torch.where(self.inequality, -self._y, -math.inf)

    def _in_user_units(self, parts: list[Tensor]) -> Tensor:
        """Return multipliers in the user's units, ≥ 0 for inequalities, from the scaled groups."""
        w = parts[0] if len(parts) == 1 else torch.cat(parts)
        if self._w_min is not None:
            w = torch.maximum(w, self._w_min)
        return w if self.scale is None else w * self.scale

    def _split(self, r: Tensor) -> list[tuple[Tensor, Tensor, Tensor | None]]:
        """Return the parts of y, r and `_lower` that have their own norm."""
        if len(self.groups) <= 1:
            return [(self._y, r, self._lower)]
        lower = self._lower
        return [(self._y[g], r[g], None if lower is None else lower[g]) for g in self.groups]

    def _pieces(self, r: Tensor) -> list[Tensor]:
        """Return the residual (A, u) of every group of a scaled r."""
        pieces = []
        for _, r_g, lower in self._split(r):
            if lower is not None:
                c = slack_stiffness(r_g, norm(r_g), lower, self.beta, self.nu)
                r_g = eliminate_slack(r_g, lower, 1 / c if c > 0 else 1.0)
            pieces.append(r_g)
        return pieces
