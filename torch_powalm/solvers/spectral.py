"""Spectral proximal gradient: Barzilai-Borwein steps with a nonmonotone line search."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_powalm.prox import Proximable
from torch_powalm.solvers.backtracking import rounding
from torch_powalm.solvers.base import Iterate, Smooth
from torch_powalm.solvers.prox_gradient import dot, first_step, prox_step

_DECREASE = 1e-4  # fraction of the predicted decrease that a point must achieve
_SHORTEST = 1e-14  # fraction of the prox-gradient step at which the search has failed
_LONGEST = 1e12  # γ relative to the first one
_GROWTH = 10.0  # of γ if the curvature along the last step is not positive


@dataclass(frozen=True)
class Spectral:
    """Nonmonotone spectral proximal gradient, for smooth ψ, convex or not, and any proximable g.

        1.  d = z − x,  z = prox_{γg}(x − γ∇ψ(x)),  Δ = ⟨∇ψ(x), d⟩ + g(z) − g(x)
        2.  t = 1, then from quadratic interpolation in [0.1 t, 0.5 t], until
                (ψ + g)(x + t d) ≤ max of the last M values of ψ + g + 1e-4 t Δ
        3.  s = t d,  γ = ‖s‖²/⟨s, ∇ψ(x + s) − ∇ψ(x)⟩, or 10 γ if the product is not positive
        4.  x = x + s

    An iteration takes one gradient if t = 1 is accepted. The residual is exact.

    Guarantee: every limit point is stationary if ψ has a continuous gradient and the level set of
    the start is bounded. If ∇ψ is only Hölder continuous, γ changes by orders of magnitude from
    step to step and the method slows down.

    Reference: Birgin, Martínez, Raydan 2000, Algorithm 2.2 (SPG2), with a prox as projection.

    Args:
        history: number M of values in the nonmonotone test, at least 1.
        step_1: first γ, > 0; None for the inverse curvature along a short step.
    """

    history: int = 10
    step_1: float | None = None

    def __post_init__(self) -> None:
        if self.history < 1:
            raise ValueError(f"history must be at least 1, got {self.history!r}")
        if self.step_1 is not None and not self.step_1 > 0:
            raise ValueError(f"step_1 must be positive, got {self.step_1!r}")

    def iterate(self, psi: Smooth, g: Proximable, x: Tensor, tol: float) -> Iterator[Iterate]:
        """Yield x of every iteration."""
        psi_x, grad_x = psi.value_and_grad(x)
        g_x = g.value(x)
        step = step_1 = self.step_1 or first_step(psi, g, x, grad_x)
        values = deque([psi_x + g_x], maxlen=self.history)
        while True:
            at = prox_step(g, x, psi_x, grad_x, step)
            g_z = g.value(at.z)
            predicted = at.slope + g_z - g_x  # −inf when x is outside dom g: z is then accepted
            bound = max(values) + rounding(x, psi_x)
            t, x_next, g_next = 1.0, at.z, g_z
            psi_next, grad_next = psi.value_and_grad(x_next)
            while not psi_next + g_next <= bound + _DECREASE * t * max(predicted, -1e300):
                t *= _shorten(t, psi_x + g_x, psi_next + g_next, predicted)
                if t < _SHORTEST:
                    return
                x_next = torch.lerp(x, at.z, t)
                psi_next, grad_next = psi.value_and_grad(x_next)
                g_next = g.value(x_next)
            s = x_next - x
            s_y = dot(s, grad_next - grad_x)
            step = dot(s, s) / s_y if s_y > 0 else min(_GROWTH * step, _LONGEST * step_1)
            x, psi_x, grad_x, g_x = x_next, psi_next, grad_next, g_next
            values.append(psi_x + g_x)
            yield Iterate(x, g.distance(x, grad_x), psi_x + g_x)


def _shorten(t: float, value: float, value_next: float, predicted: float) -> float:
    """Return the factor of t at the minimum of the parabola through two values and a slope."""
    excess = value_next - value - t * predicted
    factor = -0.5 * t * predicted / excess if excess > 0 else 0.5
    return min(0.5, max(0.1, factor))
