"""Minimization of small piecewise quadratic functions on a box; no problem is evaluated."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from torch_powalm.functional import norm

_STEPS = 40
_HALVINGS = 20
_ARMIJO = 1e-4
_ACCURACY = 1e-6  # of the projected gradient, relative to the first one
_FLATTEST = 1e-12  # pivot or eigenvalue relative to the largest one that counts as positive


class Piecewise(Protocol):
    """A function with a gradient, and with a Hessian on each of its pieces."""

    def value_and_grad(self, d: Tensor) -> tuple[float, Tensor]:
        """Value and gradient at d."""

    def hessian(self, d: Tensor) -> Tensor:
        """Hessian of the piece that d is in; d is the last point that was evaluated."""


def minimize_on_box(
    function: Piecewise, d: Tensor, lower: Tensor, upper: Tensor
) -> tuple[Tensor, float]:
    """A point of the box with a small projected gradient, or where no lower value is found.

    Newton steps on the variables that the gradient does not push against a bound, with a search
    along the projected step, or along that of the gradient over the diagonal of the Hessian if no
    lower value is found. Where the Hessian is not positive definite, the absolute values of its
    eigenvalues replace them; where it is so flat that a step would leave the box by far, they are
    increased, because the projection of such a step points anywhere.

    Args:
        function: the function.
        d: the start, in the box.
        lower: lower bounds, −inf for none.
        upper: upper bounds.

    Returns:
        The point and its value.
    """
    value, grad = function.value_and_grad(d)
    tol: float | None = None
    for _ in range(_STEPS):
        free = ~(((d <= lower) & (grad > 0)) | ((d >= upper) & (grad < 0)))
        step = grad.new_zeros(len(grad))
        size = norm(grad[free])
        tol = _ACCURACY * size if tol is None else tol
        if size <= tol or not math.isfinite(value):
            break
        H = function.hessian(d)
        p = _newton(H, grad, free, norm((upper - lower)[free]))
        if p is None:
            break
        step[free] = p
        found = _search(function, d, value, grad, step, lower, upper)
        if found is None:  # a bound is so close that the projection turns the step uphill
            steep = H.diagonal().abs()
            step[free] = (-grad / steep.clamp(min=_FLATTEST * float(steep.max()) or 1.0))[free]
            found = _search(function, d, value, grad, step, lower, upper)
        if found is None:
            break
        change = value - found[1]
        d, value, grad = found
        if change <= 1e-15 * abs(value):
            break
    return d, value


def _newton(H: Tensor, grad: Tensor, free: Tensor, longest: float) -> Tensor | None:
    """−H⁻¹∇ on the free variables, at most about as long as the box."""
    if not bool(free.all()):
        H, grad = H[free][:, free], grad[free]
    L, info = torch.linalg.cholesky_ex(H)
    pivots = L.diagonal()
    if info.item() == 0 and float(pivots.amin()) ** 2 > _FLATTEST * float(pivots.amax()) ** 2:
        newton: Tensor = torch.cholesky_solve(-grad.unsqueeze(1), L).squeeze(1)
        if norm(newton) <= longest:
            return newton
    if not bool(H.isfinite().all()):
        return None
    values, vectors = torch.linalg.eigh(H)
    steep = values.abs()
    steepest = float(steep.max())
    steep = steep.clamp(min=max(_FLATTEST * steepest, norm(grad) / longest, 1e-300))
    modified: Tensor = vectors @ ((vectors.T @ -grad) / steep)
    return modified


def _search(
    function: Piecewise,
    d: Tensor,
    value: float,
    grad: Tensor,
    step: Tensor,
    lower: Tensor,
    upper: Tensor,
) -> tuple[Tensor, float, Tensor] | None:
    """The first point along the projected step with a lower value."""
    alpha = 1.0
    for _ in range(_HALVINGS):
        d_next = torch.clamp(d + alpha * step, lower, upper)
        value_next, grad_next = function.value_and_grad(d_next)
        if value_next <= value + _ARMIJO * min(0.0, torch.dot(grad, d_next - d).item()):
            return d_next, value_next, grad_next
        alpha *= 0.4
    return None
