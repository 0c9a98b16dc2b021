"""Newton's method in a trust region, for a ψ that knows a model of itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from torch_powalm.prox import Proximable
from torch_powalm.solvers.backtracking import rounding
from torch_powalm.solvers.base import Iterate, Smooth
from torch_powalm.solvers.panoc import PANOC
from torch_powalm.solvers.prox_gradient import dot

_ACCEPTED, _POOR, _GOOD = 1e-4, 0.25, 0.75  # fractions of the predicted decrease
_SHRINK = (0.1, 0.5)  # smallest and largest factor of the radius after a refused step
_GROWTH = 3.0  # factor of the radius after a good step that has reached it
_LAST = 50  # iterations of PANOC where ψ is too flat to be compared
_SHORTEST = 1e-14  # step relative to x that counts as none


@runtime_checkable
class Modeled(Smooth, Protocol):
    """A smooth function that can minimize a model of itself, subject to the bounds of g."""

    def first_radius(self, x: Tensor) -> float:
        """A bound on the first step, since a model may be unbounded."""
        ...

    def model_step(self, x: Tensor, radius: float) -> tuple[Tensor, float] | None:
        """A step with entries of at most `radius`, and the decrease that the model predicts."""
        ...

    def corrected_step(
        self, x: Tensor, refused: Tensor, radius: float
    ) -> tuple[Tensor, float] | None:
        """A step that uses what was found at a refused point; None if that does not help."""
        ...

    def learn(self, x: Tensor, x_next: Tensor, *, accepted: bool) -> None:
        """Improve the model by the gradients at two points."""
        ...


@dataclass(frozen=True)
class ModelNewton:
    """Steps to the minimizer of a model of ψ in a box around x, kept if ψ decreases enough.

        1.  d minimizes the model over ‖d‖∞ ≤ Δ and x + d ∈ dom g
        2.  x⁺ = x + d if ψ(x) − ψ(x + d) is at least 1e-4 of what the model predicts
        3.  Δ grows after a good step and shrinks after a poor or a refused one

    Every step takes one gradient, and the model learns from refused ones, too. If no step is found,
    PANOC continues from the same point, but briefly if ψ is too flat there to be compared.

    Reference: Conn, Gould, Toint 2000.
    """

    def iterate(self, psi: Smooth, g: Proximable, x: Tensor, tol: float) -> Iterator[Iterate]:
        """Yield every point that is kept."""
        if isinstance(psi, Modeled):
            at: _Evaluated | None = _Evaluated(x, *psi.value_and_grad(x), psi.first_radius(x))
            while at is not None:
                if at.radius == 0:
                    yield from islice(PANOC().iterate(psi, g, x, tol), _LAST)
                    return
                x = at.x
                yield Iterate(x, g.distance(x, at.grad), at.psi)
                at = _next(psi, g, at)
        yield from PANOC().iterate(psi, g, x, tol)


class _Evaluated(NamedTuple):
    """A point, ψ and ∇ψ there, and the radius of the next step."""

    x: Tensor
    psi: float
    grad: Tensor
    radius: float


def _next(psi: Modeled, g: Proximable, at: _Evaluated) -> _Evaluated | None:
    """Shrink the radius until a step is accepted; None if the steps become too short.

    The radius is 0 at the end of what ψ can show: there is no step that would decrease it by more
    than rounding.
    """
    radius = at.radius
    while True:
        step = psi.model_step(at.x, radius)
        found, there = _try(psi, g, at, step, radius)
        if found is None and step is not None and step[1] <= rounding(at.x, at.psi):
            return at._replace(radius=0.0)
        if there is None:
            return None
        if found is None:
            step = psi.corrected_step(at.x, there.x, radius)
            found = _try(psi, g, at, step, radius)[0]
        if found is not None:
            return found
        radius = there.radius


def _try(
    psi: Modeled, g: Proximable, at: _Evaluated, step: tuple[Tensor, float] | None, radius: float
) -> tuple[_Evaluated | None, _Evaluated | None]:
    """The point after a step if ψ decreases enough, else None; and the point in any case."""
    if step is None:
        return None, None
    (d, predicted), x = step, at.x
    length = d.abs().max().item()
    if not (predicted > 0 and length > _SHORTEST * x.abs().max().item()):
        return None, None
    x_next = g.prox(x + d, 1.0)  # exactly in the box
    psi_next, grad_next = psi.value_and_grad(x_next)
    decrease = at.psi - psi_next + rounding(x, at.psi)
    accepted = decrease >= _ACCEPTED * predicted and bool(grad_next.isfinite().all())
    psi.learn(x, x_next, accepted=accepted)
    if not accepted:
        slope = dot(at.grad, d)
        excess = psi_next - at.psi - slope
        factor = -0.5 * slope / excess if excess > 0 else 0.0
        radius = length * min(_SHRINK[1], max(_SHRINK[0], factor))
    elif decrease < _POOR * predicted:
        radius = 0.5 * length
    elif decrease >= _GOOD * predicted and length >= 0.99 * radius:
        radius *= _GROWTH
    there = _Evaluated(x_next, psi_next, grad_next, radius)
    return (there if accepted else None), there
