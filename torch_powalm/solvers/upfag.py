"""UPFAG, the inner solver of the paper."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torch_powalm.prox import Proximable
from torch_powalm.solvers.backtracking import rounding
from torch_powalm.solvers.base import Iterate, Smooth
from torch_powalm.solvers.prox_gradient import dot, first_step

_SHORTEST = 1e-30  # relative to the first trial: the search has failed
_LONGEST = 1e12  # relative to the first trial: no trial is longer


class _Point(NamedTuple):
    """A point with ψ, ∇ψ and Ψ = ψ + g there."""

    x: Tensor
    psi: float
    grad: Tensor
    total: float


class _Middle(NamedTuple):
    """The accepted trial of the first search."""

    eta: float
    lambda_: float
    x: Tensor
    x_md: _Point
    x_ag_tilde: _Point


@dataclass(frozen=True)
class UPFAG:
    """Unified problem-parameter free accelerated gradient, for Hölder-smooth ψ and proximable g.

        1.  η_k = λ̂_k γ_1^τ, λ_k = (η_k + √(η_k² + 4 η_k Λ_{k−1}))/2, Λ_k = Λ_{k−1} + λ_k,
            α_k = λ_k/Λ_k, with the smallest τ ≥ 0 such that for
                x^md = (1 − α_k) x^ag_{k−1} + α_k x_{k−1}
                x_k  = prox_{λ_k g}(x_{k−1} − λ_k ∇ψ(x^md))
                x̃^ag = (1 − α_k) x^ag_{k−1} + α_k x_k
            ψ(x̃^ag) ≤ ψ(x^md) + α_k ⟨∇ψ(x^md), x_k − x_{k−1}⟩ + α_k/(2λ_k) ‖x_k − x_{k−1}‖² + δα_k
        2.  β_k = β̂_k γ_2^τ with the smallest τ ≥ 0 such that for
                x̄^ag = prox_{β_k g}(x^ag_{k−1} − β_k ∇ψ(x^ag_{k−1}))
            Ψ(x̄^ag) ≤ Ψ(x^ag_{k−1}) − γ_3/(2β_k) ‖x̄^ag − x^ag_{k−1}‖² + 1/k
        3.  x^ag_k = the one of x^ag_{k−1}, x̄^ag, x̃^ag with the smallest Ψ (x̄^ag on a tie)

    With trial = "bb", the first trials are Barzilai-Borwein steps ‖s‖²/⟨s, y⟩: for λ̂_k between x^md
    and x̃^ag, and for β̂_k between x^ag_{k−2} and x^ag_{k−1}, or x^ag_{k−2} and x̄^ag if x^ag has not
    moved, since the same trial would fail again. If ⟨s, y⟩ ≤ 0 they are η_{k−1}/γ_1 and
    β_{k−1}/γ_2, one backtrack longer than the accepted step; otherwise steps could never grow where
    ψ is concave. With trial = "last" they are η_{k−1} and β_{k−1} and never grow: where trials grow
    in every iteration, steps that are too long pass for as long as the slack 1/k allows, and x̄^ag
    does not converge. With "first" they are always step_1, which must be short enough for ψ.

    An iteration takes three gradients without backtracks. It yields x^ag_k or x̄^ag, whichever has
    the smaller residual: x̃^ag is a convex combination and may miss a bound by an ε, where the
    subdifferential of g jumps. The gradients at both are known from their trials, so the residual
    is exact. With point = "x_bar" it yields x̄^ag, to which the paper's bounds apply, and x^ag_k is
    the first of the three with the smallest Ψ.

    Guarantee: stationarity at the optimal rate for Hölder-smooth ψ, convex or not, without knowing
    its constants, if g is convex with a bounded domain or ψ + g has bounded level sets.

    Reference: paper, Algorithm 3; Ghadimi, Lan, Zhang 2019, Algorithm 1.

    Args:
        gamma_1: shrink factor of the first search, in (0, 1).
        gamma_2: shrink factor of the second search, in (0, 1).
        gamma_3: decrease factor of the second search, in (0, 1).
        delta: slack of the first search, > 0.
        step_1: both first trials λ̂_1 = β̂_1, > 0; None for the inverse curvature at the start.
        trial: first trials of later iterations: "bb", "last" or "first".
        point: what an iteration shows: "best" or "x_bar".
    """

    gamma_1: float = 0.4
    gamma_2: float = 0.4
    gamma_3: float = 0.5
    delta: float = 1e-3
    step_1: float | None = None
    trial: str = "bb"
    point: str = "best"

    def __post_init__(self) -> None:
        for name in ("gamma_1", "gamma_2", "gamma_3"):
            if not 0 < (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} must be in (0, 1), got {value!r}")
        if not self.delta > 0:
            raise ValueError(f"delta must be positive, got {self.delta!r}")
        if self.step_1 is not None and not self.step_1 > 0:
            raise ValueError(f"step_1 must be positive, got {self.step_1!r}")
        if self.trial not in ("bb", "last", "first"):
            raise ValueError(f"trial must be 'bb', 'last' or 'first', got {self.trial!r}")
        if self.point not in ("best", "x_bar"):
            raise ValueError(f"point must be 'best' or 'x_bar', got {self.point!r}")

    def iterate(self, psi: Smooth, g: Proximable, x: Tensor, tol: float) -> Iterator[Iterate]:
        """Yield x^ag of every iteration."""
        psi_x, grad_x = psi.value_and_grad(x)
        x_ag = _Point(x, psi_x, grad_x, psi_x + g.value(x))
        lambda_hat = beta_hat = step_1 = self.step_1 or first_step(psi, g, x, grad_x)
        lambda_sum, k = 0.0, 1
        while True:
            middle = self._first_search(psi, g, x, x_ag, lambda_hat, lambda_sum, _SHORTEST * step_1)
            bar = self._second_search(psi, g, x_ag, beta_hat, k, _SHORTEST * step_1)
            if middle is None or bar is None:
                return
            x_ag_bar, beta_k = bar
            x_ag_next = min(x_ag, x_ag_bar, middle.x_ag_tilde, key=_total)
            if self.point == "x_bar":
                yield _iterate(g, x_ag_bar)
            else:
                # Equal up to rounding: prefer the prox-gradient point, which lowers the residual.
                if x_ag_bar.total <= x_ag_next.total + rounding(x, x_ag.psi):
                    x_ag_next = x_ag_bar
                yield min(_iterate(g, x_ag_next), _iterate(g, x_ag_bar), key=_residual)
            x_ag_moved = x_ag_bar if x_ag_next is x_ag else x_ag_next
            if self.trial == "last":
                lambda_hat, beta_hat = middle.eta, beta_k
            elif self.trial == "bb":
                longer = middle.eta / self.gamma_1, beta_k / self.gamma_2
                lambda_hat = _step(middle.x_md, middle.x_ag_tilde) or longer[0]
                beta_hat = _step(x_ag, x_ag_moved) or longer[1]
            lambda_hat, beta_hat = (min(t, _LONGEST * step_1) for t in (lambda_hat, beta_hat))
            lambda_sum += middle.lambda_
            x, x_ag, k = middle.x, x_ag_next, k + 1

    def _first_search(
        self,
        psi: Smooth,
        g: Proximable,
        x: Tensor,
        x_ag: _Point,
        lambda_hat: float,
        lambda_sum: float,
        shortest: float,
    ) -> _Middle | None:
        eta_k = lambda_hat
        while eta_k > shortest:
            lambda_k = (eta_k + math.sqrt(eta_k**2 + 4 * eta_k * lambda_sum)) / 2
            alpha_k = lambda_k / (lambda_sum + lambda_k)
            # For k = 1 the middle point is the start, where ψ and ∇ψ are known.
            x_md = x_ag if lambda_sum == 0 else _at(psi, torch.lerp(x_ag.x, x, alpha_k))
            x_next = g.prox(torch.sub(x, x_md.grad, alpha=lambda_k), lambda_k)
            x_ag_tilde = _at(psi, torch.lerp(x_ag.x, x_next, alpha_k), g)
            d = x_next - x
            model = dot(x_md.grad, d) + dot(d, d) / (2 * lambda_k) + self.delta
            if x_ag_tilde.psi <= x_md.psi + alpha_k * model + rounding(x, x_md.psi):
                return _Middle(eta_k, lambda_k, x_next, x_md, x_ag_tilde)
            eta_k *= self.gamma_1
        return None

    def _second_search(
        self, psi: Smooth, g: Proximable, x_ag: _Point, beta_hat: float, k: int, shortest: float
    ) -> tuple[_Point, float] | None:
        beta_k = beta_hat
        while beta_k > shortest:
            x = g.prox(torch.sub(x_ag.x, x_ag.grad, alpha=beta_k), beta_k)
            x_ag_bar = _at(psi, x, g)
            d = x - x_ag.x
            bound = x_ag.total - self.gamma_3 / (2 * beta_k) * dot(d, d) + 1 / k
            if x_ag_bar.total <= bound + rounding(x, x_ag.psi):
                return x_ag_bar, beta_k
            beta_k *= self.gamma_2
        return None


def _iterate(g: Proximable, point: _Point) -> Iterate:
    return Iterate(point.x, g.distance(point.x, point.grad), point.total)


def _residual(iterate: Iterate) -> float:
    return iterate.residual if not math.isnan(iterate.residual) else math.inf


def _at(psi: Smooth, x: Tensor, g: Proximable | None = None) -> _Point:
    psi_x, grad_x = psi.value_and_grad(x)
    return _Point(x, psi_x, grad_x, psi_x + g.value(x) if g else math.nan)


def _total(point: _Point) -> float:
    return point.total if not math.isnan(point.total) else math.inf


def _step(a: _Point, b: _Point) -> float | None:
    """The Barzilai-Borwein step ‖s‖²/⟨s, y⟩ between two points; None if ⟨s, y⟩ ≤ 0."""
    s = b.x - a.x
    s_y = dot(s, b.grad - a.grad)
    return dot(s, s) / s_y if 0 < s_y < math.inf else None
