"""DualState: multiplier y and penalty β of both routes, and the only method that changes them."""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_powalm.functional import (
    augmented_lagrangian,
    dual_step,
    eliminate_slack,
    norm,
    scaled_add,
    slack_stiffness,
    stiffness,
    violation,
)
from torch_powalm.result import DualRecord

_BETA_LIMIT = 1e200  # keeps a penalty that grows without end finite


class DualState:
    """Multiplier y, penalty β and counter k, with their update rules.

        w(r) = y + β∇φ(r)                     what multiplies the Jacobian
        y ← y + σ∇φ(r),   β ← ωβ,   k ← k + 1

    r is a flat vector (A(x), B(x)); slacks of inequalities are eliminated exactly, and y ≥ 0 there.

    Args:
        nu: exponent ν of the penalty, in (0, 1]; 1 is the classical method.
        beta_1: first penalty, > 0.
        omega: growth of the penalty, ≥ 1.
        sigma: dual step rule: "penalty" (σ = β) or "paper" (Algorithm 1, from sigma_1).
        sigma_1: first dual step of the rule "paper", ≥ 0.
        beta_max: largest penalty, ≥ beta_1.
        y_max: largest absolute entry of y, > 0.
        sufficient_decrease: in (0, 1): β grows only if ‖r‖ has not fallen by this factor since
            the last update; None lets it grow at every update.
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
        check_numbers(nu=nu, beta_1=beta_1, omega=omega, beta_max=beta_max, y_max=y_max)
        check_numbers(sigma_1=sigma_1)
        if sufficient_decrease is not None:
            check_numbers(sufficient_decrease=sufficient_decrease)
        if not 0 < nu <= 1:
            raise ValueError(f"nu must be in (0, 1], got {nu!r}")
        if not beta_max > 0:
            raise ValueError(f"beta_max must be positive, got {beta_max!r}")
        if not 0 < beta_1 < math.inf:
            raise ValueError(f"beta_1 must be positive and finite, got {beta_1!r}")
        if not 1 <= omega < math.inf:
            raise ValueError(f"omega must be at least 1 and finite, got {omega!r}")
        if sigma not in ("penalty", "paper"):
            raise ValueError(f"sigma must be 'penalty' or 'paper', got {sigma!r}")
        if not 0 <= sigma_1 < math.inf:
            raise ValueError(f"sigma_1 must be nonnegative and finite, got {sigma_1!r}")
        if not beta_max >= beta_1:
            raise ValueError(f"beta_max must be at least beta_1 = {beta_1!r}, got {beta_max!r}")
        if not y_max > 0:
            raise ValueError(f"y_max must be positive, got {y_max!r}")
        if sufficient_decrease is not None and not 0 < sufficient_decrease < 1:
            raise ValueError(
                f"sufficient_decrease must be None or in (0, 1), got {sufficient_decrease!r}"
            )
        self.nu, self.beta_1, self.omega = float(nu), float(beta_1), float(omega)
        self.sigma, self.sigma_1 = sigma, float(sigma_1)
        self.beta_max, self.y_max = float(beta_max), float(y_max)
        self.sufficient_decrease = sufficient_decrease

        self.started, self.beta, self.k = False, self.beta_1, 1
        self.y = torch.empty(0)  # one entry per constraint once started
        self.start_norm = 0.0  # ‖∇φ(r_1)‖
        self.last_norm = math.inf  # ‖r‖ at the last update
        self.inequality: Tensor | None = None  # which entries are inequalities; None if none is
        self.groups: list[slice] = []  # the parts of r that have their own norm
        self._lower: Tensor | None = None  # u = max(B, t·lower): −y, and −inf for equalities
        self._w_min: Tensor | None = None  # smallest weight: 0, and −inf for equalities

    def start(
        self, r: Tensor, inequality: Tensor | None = None, groups: Sequence[slice] | None = None
    ) -> None:
        """Set y = 0, β = β_1, k = 1 and remember ‖∇φ(r_1)‖.

        Args:
            r: (A(x_1), B(x_1)), flat.
            inequality: boolean mask of the entries that are inequalities; None if none is.
            groups: slices that cover r, each with its own norm; None for one norm over all.
        """
        self.inequality, self._lower, self._w_min = inequality, None, None
        self.groups = list(groups) if groups is not None else [slice(0, len(r))]
        if inequality is not None:
            self._w_min = torch.zeros_like(r).masked_fill(~inequality, -math.inf)
        self._move(torch.zeros_like(r))
        self.beta, self.k = self.beta_1, 1
        u = violation(r, inequality)  # the slacks are max(−B, 0) where y = 0
        norms = [norm(u[g]) for g in self.groups]
        self.last_norm = math.hypot(*norms)
        self.start_norm = math.hypot(*(n_i**self.nu for n_i in norms))
        self.started = True

    def weight(self, r: Tensor) -> Tensor | None:
        """Weight w = y + β∇φ at r, 0 where an inequality is inactive; None if r is not finite."""
        parts = []
        for y, r_g, lower in self._split(r):
            r_norm = norm(r_g)
            if not math.isfinite(r_norm):
                return None
            c = slack_stiffness(r_g, r_norm, lower, self.beta, self.nu)
            parts.append(scaled_add(y, r_g, c))
        w = parts[0] if len(parts) == 1 else torch.cat(parts)
        return w if self._w_min is None else torch.maximum(w, self._w_min)

    def value_and_weight(self, r: Tensor) -> tuple[float, Tensor] | None:
        """Return `value` and `weight`, sharing one norm; None if not finite."""
        if len(self.groups) > 1 or self._lower is not None:
            w = self.weight(r)
            return None if w is None else (self.value(r), w)
        r_norm = norm(r)
        value = augmented_lagrangian(0.0, r, self.y, self.beta, self.nu, r_norm)
        if not math.isfinite(value):
            return None
        return value, scaled_add(self.y, r, stiffness(r_norm, self.beta, self.nu))

    def value(self, r: Tensor) -> float:
        """Value ⟨y, r⟩ + βφ(r) that the constraints add to the objective, slacks eliminated."""
        return sum(
            augmented_lagrangian(0.0, r_g, self.y[g], self.beta, self.nu)
            for g, r_g in zip(self.groups, self._pieces(r), strict=True)
        )

    def residual_norm(self, r: Tensor) -> float:
        """‖r‖ with slacks eliminated, as the next update sees it."""
        return math.hypot(*(norm(r_i) for r_i in self._pieces(r)))

    def update(self, r: Tensor, *, hold: float | None = None) -> DualRecord:
        """Move y by σ∇φ(r), grow β, advance k.

        Args:
            r: (A(x), B(x)), finite.
            hold: keep y and multiply β by this factor, > 0, because the subproblem had no minimizer
                (a large factor) or must be solved further (at most 1).
        """
        if hold is not None:
            record = DualRecord(self.k, norm(r), self.beta, 0.0, norm(self.y))
            self.beta = min(hold * self.beta, self.beta_max, _BETA_LIMIT)
            self.k += 1
            return record
        pieces = self._pieces(r)
        norms = [norm(r_i) for r_i in pieces]
        r_norm = math.hypot(*norms)
        step_norm = math.hypot(*(n_i**self.nu for n_i in norms))
        if self.sigma == "penalty":
            sigma = self.beta
        else:
            sigma = dual_step(self.sigma_1, self.start_norm, step_norm, self.k)

        parts = [
            scaled_add(self.y[g], r_i, sigma * stiffness(n_i, 1.0, self.nu))
            for g, r_i, n_i in zip(self.groups, pieces, norms, strict=True)
        ]
        y = torch.cat(parts).clamp(-self.y_max, self.y_max)
        if self._w_min is not None:
            y = torch.maximum(y, self._w_min)
        A_norm = norm(violation(r, self.inequality))
        record = DualRecord(self.k, A_norm, self.beta, sigma, norm(y))

        self._move(y)
        if self.sufficient_decrease is None or r_norm > self.sufficient_decrease * self.last_norm:
            self.beta = min(self.omega * self.beta, self.beta_max, _BETA_LIMIT)
        self.last_norm = r_norm
        self.k += 1
        return record

    def state_dict(self) -> dict[str, Any]:
        """Return the running values; the settings belong to the constructor."""
        return {
            "y": self.y,
            "beta": self.beta,
            "k": self.k,
            "start_norm": self.start_norm,
            "last_norm": self.last_norm,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the running values of another state of the same size."""
        self._move(state["y"].detach().clone())
        self.beta, self.k = float(state["beta"]), int(state["k"])
        self.start_norm, self.last_norm = float(state["start_norm"]), float(state["last_norm"])

    def restored(
        self, state: Mapping[str, Any], inequality: Tensor | None, groups: list[slice] | None
    ) -> "DualState":
        """Return a state with these settings and saved running values; y is None if not started."""
        other = copy.copy(self)
        other.started, other.y, other.beta, other.k = False, torch.empty(0), other.beta_1, 1
        if state["y"] is not None:
            other.start(state["y"], inequality, groups)
            other.load_state_dict(state)
        return other

    def take_over(self, other: "DualState") -> None:
        """Become equal to another state."""
        self.__dict__.update(other.__dict__)

    def _move(self, y: Tensor) -> None:
        """Set y, and the lower bound of u that follows from it."""
        self.y = y
        if self.inequality is not None:
            self._lower = torch.where(self.inequality, -y, -math.inf)

    def _split(self, r: Tensor) -> list[tuple[Tensor, Tensor, Tensor | None]]:
        """Return the parts of y, r and `_lower` that have their own norm."""
        if len(self.groups) <= 1:
            return [(self.y, r, self._lower)]
        lower = self._lower
        return [(self.y[g], r[g], None if lower is None else lower[g]) for g in self.groups]

    def _pieces(self, r: Tensor) -> list[Tensor]:
        """Return the residual (A, u) of every group."""
        pieces = []
        for _, r_g, lower in self._split(r):
            if lower is not None:
                c = slack_stiffness(r_g, norm(r_g), lower, self.beta, self.nu)
                r_g = eliminate_slack(r_g, lower, 1 / c if c > 0 else 1.0)
            pieces.append(r_g)
        return pieces


def check_numbers(**values: float) -> None:
    """Raise if an argument is not a number."""
    for name, value in values.items():
        if not hasattr(value, "__float__"):
            raise TypeError(f"{name} must be a number, got {value!r}")
