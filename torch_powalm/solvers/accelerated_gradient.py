"""Accelerated proximal gradient (FISTA)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from torch_powalm.prox import Proximable
from torch_powalm.solvers.backtracking import rounding, under_model
from torch_powalm.solvers.base import Iterate, Smooth
from torch_powalm.solvers.prox_gradient import ProxStep, dot, first_step, prox_step
from torch_powalm.solvers.residual_estimate import ResidualEstimate

_SHORTEST = 1e-30  # relative to the first trial: the search for a shorter step has failed
_FIRST_TRIAL = 4.0  # relative to the inverse curvature at the start, since γ mostly shrinks


@dataclass(frozen=True)
class AcceleratedGradient:
    """Accelerated proximal gradient, for convex ψ with Lipschitz gradient and any proximable g.

        1.  z = prox_{γg}(x_ext − γ∇ψ(x_ext)); without a fixed step, γ shrinks until ψ(z) is below
            its quadratic model
        2.  if restart and ⟨x_ext − z, z − z_prev⟩ > 0: t = 1, and γ may grow by 1/shrink
        3.  t_next = (1 + √(1 + 4t²))/2,  x_ext = z + (t − 1)/t_next (z − z_prev),  t = t_next

    It yields z. An iteration takes one gradient, plus one value per trial without a fixed step, and
    a second gradient only to certify the residual.

    Guarantee: ψ + g − min = O(1/k²) for convex ψ if step ≤ 1/L or with backtracking. None for
    nonconvex or Hölder-smooth ψ, where only the residual shows convergence. A fixed step that is
    too long diverges.

    Reference: Beck, Teboulle 2009; restarts: O'Donoghue, Candès 2015.

    Args:
        step: fixed step γ, > 0; None for backtracking from the inverse curvature at the start.
        momentum: False for the plain proximal gradient method.
        restart: drop the momentum when it points uphill.
        shrink: factor of a backtrack, in (0, 1).
    """

    step: float | None = None
    momentum: bool = True
    restart: bool = True
    shrink: float = 0.5

    def __post_init__(self) -> None:
        if self.step is not None and not self.step > 0:
            raise ValueError(f"step must be positive, got {self.step!r}")
        if not 0 < self.shrink < 1:
            raise ValueError(f"shrink must be in (0, 1), got {self.shrink!r}")

    def iterate(self, psi: Smooth, g: Proximable, x: Tensor, tol: float) -> Iterator[Iterate]:
        """Yield z of every iteration."""
        estimate = ResidualEstimate(tol)
        x_ext, z_prev, t = x, x, 1.0
        psi_x, grad_x = psi.value_and_grad(x_ext)
        step_1 = step = self.step or _FIRST_TRIAL * first_step(psi, g, x, grad_x)
        while True:
            at = prox_step(g, x_ext, psi_x, grad_x, step)
            if self.step is None:
                at = self._backtrack(psi, g, at)
                if at.step < _SHORTEST * step_1:
                    return
            yield estimate.iterate(psi, at)
            step, moved = at.step, at.z - z_prev
            if self.restart and dot(at.r, moved) > 0:
                t = 1.0
                # Below rounding the model accepts any step, so γ must not grow then.
                if self.step is None and at.step * at.r_sq > rounding(at.x, at.psi_x):
                    step = at.step / self.shrink
            t_next = (1 + math.sqrt(1 + 4 * t * t)) / 2
            weight = (t - 1) / t_next if self.momentum else 0.0
            x_ext = at.z.add(moved, alpha=weight) if weight else at.z
            z_prev, t = at.z, t_next
            psi_x, grad_x = psi.value_and_grad(x_ext)

    def _backtrack(self, psi: Smooth, g: Proximable, at: ProxStep) -> ProxStep:
        margin, shortest = rounding(at.x, at.psi_x), _SHORTEST * at.step
        while not under_model(
            psi.value(at.z), at.psi_x, at.slope, at.step**2 * at.r_sq, at.step, margin
        ):
            at = prox_step(g, at.x, at.psi_x, at.grad_x, self.shrink * at.step)
            if at.step < shortest:
                break
        return at
