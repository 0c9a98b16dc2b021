"""The solver protocol, and the one loop that runs all solvers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torch_powalm.prox import Proximable
from torch_powalm.result import InnerResult, Status
from torch_powalm.solvers.backtracking import rounding

PATIENCE = 100  # iterations without progress beyond rounding after which a run counts as stalled


class Smooth(Protocol):
    """A smooth function ψ."""

    def value(self, x: Tensor) -> float:
        """Return ψ(x)."""
        ...

    def value_and_grad(self, x: Tensor) -> tuple[float, Tensor]:
        """Return ψ(x) and ∇ψ(x)."""
        ...


class Iterate(NamedTuple):
    """What a solver yields after one iteration.

    Args:
        x: the point.
        residual: ‖v‖ for some v ∈ ∂(ψ + g)(x) if certified, else an estimate of it.
        merit: the function that the solver decreases: ψ + g at x, or an envelope of it.
        certified: whether the residual was computed with the gradient at x. A method that does not
            otherwise need this gradient may skip it while the estimate is above the tolerance.
    """

    x: Tensor
    residual: float
    merit: float
    certified: bool = True


class Solver(Protocol):
    """A method for min ψ(x) + g(x): frozen settings and a generator of iterates."""

    def iterate(self, psi: Smooth, g: Proximable, x: Tensor, tol: float) -> Iterator[Iterate]:
        """Yield after every iteration; return only if no further step can be found.

        A tensor that was passed to psi or yielded must not be modified in place afterward: ψ
        recognizes its last point by the tensor, and the caller keeps the last iterate.

        tol does not stop the generator. It says below which value an estimate of the residual must
        be certified, and how accurately a method with inner problems must solve them.
        """
        ...


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

    The run also ends with MAX_ITER after max_iter iterations, with BUDGET if stop() is true, with
    STALLED if the solver finds no further step or makes no progress beyond rounding, and with
    NOT_FINITE if a value is not finite. It then returns the last finite iterate, not the one with
    the smallest residual, which can be a saddle point near the start if ψ is nonconvex. It returns
    the start if ψ + g is smaller there. Ctrl-C raises KeyboardInterrupt as usual.

    Args:
        solver: the method.
        psi: smooth part of the objective.
        g: proximable part of the objective.
        x: start; not modified.
        tol: bound on the residual, > 0.
        max_iter: bound on the iterations, at least 1.
        stop: called after every iteration; the run ends if it returns True.
    """
    return InnerRun(solver, psi, g, x, tol=tol, max_iter=max_iter, stop=stop).finish()


class InnerRun:
    """A run of a solver that can be asked for its result even if Ctrl-C cuts it short.

    The arguments are those of `run`, and the iterations without progress beyond rounding after
    which it counts as stalled.
    """

    def __init__(
        self,
        solver: Solver,
        psi: Smooth,
        g: Proximable,
        x: Tensor,
        *,
        tol: float,
        max_iter: int,
        stop: Callable[[], bool] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        if not tol > 0:
            raise ValueError(f"tol must be positive, got {tol!r}")
        if max_iter < 1:
            raise ValueError(f"max_iter must be at least 1, got {max_iter!r}")
        self.solver, self.psi, self.g, self.x = solver, psi, g, x
        self.tol, self.max_iter, self.stop = tol, max_iter, stop
        self.patience = patience
        self.last: Iterate | None = None  # the last finite iterate
        self.iterations = 0
        self.status: Status | None = None  # None while the run goes on

    @torch.no_grad()
    def finish(self) -> InnerResult:
        """Advance the solver until the run ends."""
        progress = _Progress(self.x, self.patience)
        for iterate in self.solver.iterate(self.psi, self.g, self.x, self.tol):
            self.iterations += 1
            if not (math.isfinite(iterate.residual) and math.isfinite(iterate.merit)):
                self.status = Status.NOT_FINITE
                break
            self.last = iterate
            self.status = self._status_at(iterate, progress)
            if self.status is not None:
                break
        else:
            self.status = Status.STALLED
        return self.result()

    @torch.no_grad()
    def result(self) -> InnerResult:
        """Where the run has ended, or where it is if Ctrl-C interrupted it; measured there."""
        x, last, status = self.x, self.last, self.status or Status.INTERRUPTED
        if last is not None and status is Status.CONVERGED:
            return InnerResult(last.x, last.residual, self.iterations, status)
        psi_x, grad_x = self.psi.value_and_grad(x)
        objective = psi_x + self.g.value(x)
        if last is not None:
            psi_last, grad_last = self.psi.value_and_grad(last.x)
            if psi_last + self.g.value(last.x) <= objective or not math.isfinite(objective):
                x, grad_x = last.x, grad_last
        return InnerResult(x, self.g.distance(x, grad_x), self.iterations, status)

    def _status_at(self, iterate: Iterate, progress: _Progress) -> Status | None:
        """How the run ends at a finite iterate; None if it goes on."""
        if iterate.certified and iterate.residual <= self.tol:
            return Status.CONVERGED
        if self.iterations >= self.max_iter:
            return Status.MAX_ITER
        if self.stop is not None and self.stop():
            return Status.BUDGET
        return Status.STALLED if progress.has_ended(iterate) else None


class _Progress:
    """Check whether merit and residual still change by more than rounding."""

    def __init__(self, x: Tensor, patience: float) -> None:
        self.x, self.patience = x, patience
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
        return self.idle >= self.patience
