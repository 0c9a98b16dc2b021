"""What a solver is, and the one loop that runs them all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torch_powalm.prox import Proximable
from torch_powalm.result import InnerResult, Status
from torch_powalm.solvers.backtracking import rounding

_PATIENCE = 100  # iterations without progress beyond rounding until a run counts as stalled


class Smooth(Protocol):
    """A smooth function ψ."""

    def value(self, x: Tensor) -> float:
        """Return ψ(x)."""
        ...

    def value_and_grad(self, x: Tensor) -> tuple[float, Tensor]:
        """Return ψ(x) and ∇ψ(x)."""
        ...


class Iterate(NamedTuple):
    """What a solver shows after one iteration.

    Args:
        x: the point.
        residual: ‖v‖ for some v ∈ ∂(ψ + g)(x) if certified, else an estimate of it.
        merit: the function the solver decreases, ψ + g at x or an envelope of it.
        certified: the residual was computed with the gradient at x. A method that has no use for
            this gradient may save it as long as the estimate is above the tolerance.
    """

    x: Tensor
    residual: float
    merit: float
    certified: bool = True


class Solver(Protocol):
    """A method for min ψ(x) + g(x): frozen settings and a generator of iterates."""

    def iterate(self, psi: Smooth, g: Proximable, x: Tensor, tol: float) -> Iterator[Iterate]:
        """Yield after every iteration; end only if no further step can be found.

        tol does not stop the generator. It says from where on an estimate of the residual has to
        be certified, and how exactly a method with inner problems has to solve them.
        """
        ...


@torch.no_grad()
def run(
    solver: Solver,
    psi: Smooth,
    g: Proximable,
    x: Tensor,
    *,
    tol: float,
    max_iter: int,
    stop: Callable[[], bool] | None = None,
) -> InnerResult:
    """Advance a solver until its certified residual is at most tol.

    It also ends with MAX_ITER after max_iter iterations, with BUDGET when stop() is true, with
    STALLED when the solver finds no further step or makes no progress beyond rounding, with
    NOT_FINITE when a value is not finite, and with INTERRUPTED after Ctrl-C. In these cases the
    last finite iterate is returned, not the one with the smallest residual, which for nonconvex ψ
    can be a saddle near the start; but if ψ + g is larger there than at the start, the start is.

    Args:
        solver: the method.
        psi: smooth part of the objective.
        g: proximable part of the objective.
        x: start; not modified.
        tol: bound on the residual, > 0.
        max_iter: bound on the iterations, at least 1.
        stop: asked after every iteration whether a budget of the caller is used up.
    """
    if not tol > 0:
        raise ValueError(f"tol must be positive, got {tol!r}")
    if max_iter < 1:
        raise ValueError(f"max_iter must be at least 1, got {max_iter!r}")
    status, iterations, last = Status.STALLED, 0, None
    progress = _Progress(x)
    try:
        for iterate in solver.iterate(psi, g, x, tol):
            iterations += 1
            if not (math.isfinite(iterate.residual) and math.isfinite(iterate.merit)):
                status = Status.NOT_FINITE
                break
            last = iterate
            if iterate.certified and iterate.residual <= tol:
                return InnerResult(iterate.x, iterate.residual, iterations, Status.CONVERGED)
            if iterations >= max_iter:
                status = Status.MAX_ITER
                break
            if stop is not None and stop():
                status = Status.BUDGET
                break
            if progress.has_ended(iterate):
                break
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    return _unconverged(psi, g, x, last, iterations, status)


class _Progress:
    """Sees whether merit and residual still change by more than rounding."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.merit = math.nan  # differs from every value
        self.residual = math.inf
        self.idle = 0

    def has_ended(self, iterate: Iterate) -> bool:
        """Return whether the last iterates made no progress."""
        self.idle += 1
        if iterate.residual < 0.9 * self.residual:
            self.residual, self.idle = iterate.residual, 0
        # Accelerated methods oscillate: any change of the merit counts, not only a decrease.
        if not abs(iterate.merit - self.merit) <= rounding(self.x, self.merit):
            self.merit, self.idle = iterate.merit, 0
        return self.idle >= _PATIENCE


def _unconverged(
    psi: Smooth, g: Proximable, x: Tensor, last: Iterate | None, iterations: int, status: Status
) -> InnerResult:
    psi_x, grad_x = psi.value_and_grad(x)
    objective = psi_x + g.value(x)
    if last is not None:
        psi_last, grad_last = psi.value_and_grad(last.x)
        if psi_last + g.value(last.x) <= objective or not math.isfinite(objective):
            x, grad_x = last.x, grad_last
    return InnerResult(x, g.distance(x, grad_x), iterations, status)
