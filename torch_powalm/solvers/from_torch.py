"""Any torch.optim optimizer as an inner solver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from torch_powalm.prox import Proximable
from torch_powalm.solvers.base import Iterate, Smooth


class FromTorch:
    """A torch optimizer with a prox after each step, for any ψ and g.

        1.  x ← x after optimizer.step(closure); the closure sets x.grad = ∇ψ(x) and returns ψ(x)
        2.  x ← prox_{lr g}(x)

    An iteration takes one gradient, or as many as the optimizer requests from its closure. The
    residual is exact; its gradient is reused as the first one of the next step.

    Guarantee: that of the optimizer. For plain gradient steps the fixed points are the stationary
    points of ψ + g, for any g. For an optimizer that scales coordinates, such as Adam, this holds
    only if g is zero or the indicator of a box. With L1, for example, such a run does not converge
    to a stationary point.

    Example:
        FromTorch(torch.optim.Adam, lr=1e-2)

    Args:
        optimizer: a subclass of torch.optim.Optimizer whose groups have an lr.
        settings: its keyword arguments.
    """

    def __init__(self, optimizer: type[torch.optim.Optimizer], **settings: Any) -> None:
        if not (isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer)):
            raise TypeError(f"optimizer must be a subclass of Optimizer, got {optimizer!r}")
        self.optimizer = optimizer
        self.settings = settings
        # Let the optimizer check its arguments now rather than at the first solve.
        group = self._build(torch.zeros(1, requires_grad=True)).param_groups[0]
        if "lr" not in group:
            raise ValueError(f"optimizer must have an lr, got {optimizer.__name__}")

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        return f"FromTorch({self.optimizer.__name__}{settings})"

    def iterate(self, psi: Smooth, g: Proximable, x: Tensor, tol: float) -> Iterator[Iterate]:
        """Yield x after every step and prox; the parameter, updated in place, never leaves here."""
        parameter = x.detach().clone().requires_grad_()
        optimizer = self._build(parameter)
        known: tuple[float, Tensor] | None = psi.value_and_grad(x)

        def closure() -> Tensor:
            nonlocal known
            psi_x, grad_x = known or psi.value_and_grad(parameter.detach().clone())
            known = None
            parameter.grad = grad_x.clone()
            return x.new_tensor(psi_x)

        while True:
            optimizer.step(closure)  # type: ignore[arg-type]
            with torch.no_grad():
                x_next = g.prox(parameter.detach(), float(optimizer.param_groups[0]["lr"]))
                parameter.copy_(x_next)
            known = psi_x, grad_x = psi.value_and_grad(x_next)
            yield Iterate(x_next, g.distance(x_next, grad_x), psi_x + g.value(x_next))

    def _build(self, parameter: Tensor) -> torch.optim.Optimizer:
        return self.optimizer([parameter], **self.settings)
