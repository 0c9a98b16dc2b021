"""Inner tolerance: how accurately the next subproblem is solved."""

from __future__ import annotations

import math
from typing import TypeAlias

from torch import Tensor

from torch_powalm.dual import DualState
from torch_powalm.prox import Proximable
from torch_powalm.result import InnerResult, Status
from torch_powalm.solvers.base import Smooth
from torch_powalm.solving.subproblem import Subproblem
from torch_powalm.solving.termination import DECREASE_AUTOMATIC, DECREASE_GIVEN_LAM

_FIRST = 0.01  # first automatic tolerance, relative to the residual at x_1
_SHRINK = 0.3  # factor from one tolerance to the next
_NEWTON = 0.05  # tolerance of a Newton method, relative to the residual where it starts
_GROWTH = 10.0  # of β where f is constant
_FEASIBLE = 0.5  # violation, relative to eps_A, that needs no better multipliers
_TARGET = 0.3  # violation, relative to eps_A, that a further pass on the same y should leave
_MIN_FACTOR = 0.1  # smallest factor of β for such a pass


class AutomaticTolerance:
    """A tolerance that decreases from the first residual to eps_phi/2.

    Args:
        residual: stationarity of x_1.
        eps_phi: tolerance of the dual residual, > 0.
    """

    decrease = DECREASE_AUTOMATIC
    constant = False  # whether f was constant so far, if that matters

    def __init__(self, residual: float, eps_phi: float) -> None:
        self.floor = 0.5 * eps_phi
        self.value = max(self.floor, min(_FIRST * residual, 1e300) if residual < math.inf else 0.0)

    def begin(self, psi: Smooth, g: Proximable, x: Tensor) -> None:
        """Take the start of the next subproblem into account."""

    def advance(self, dual: DualState) -> None:
        """Set the tolerance of the next subproblem."""
        self.value = max(self.floor, _SHRINK * self.value)

    def hold(self, violation: float, inner: InnerResult, nu: float) -> float | None:
        """Factor of β if y must stay, None if it may move.

        y stays if the point is feasible and its subproblem can be solved more accurately. A new y
        would pull ‖A‖ toward 0, where the curvature of ψ is unbounded for ν < 1. Since β‖A‖^ν is
        the distance of y from its limit, the factor is the one that lets ‖A‖ grow to _TARGET eps_A,
        which makes ψ less stiff. For ν = 1 the curvature is β itself, and β stays.

        Args:
            violation: residual of the constraints over eps_A. The residual includes multipliers of
                inactive inequalities, which the primal residual does not.
            inner: how the subproblem ended.
            nu: exponent ν of the penalty.
        """
        if violation > _FEASIBLE:
            return None
        if inner.status is not Status.CONVERGED or self.value <= self.floor:
            return None
        return 1.0 if nu == 1 else min(1.0, max(_MIN_FACTOR, (violation / _TARGET) ** nu))


class NewtonTolerance(AutomaticTolerance):
    """A fraction of the residual where each subproblem starts, at least eps_phi/2.

    Newton steps converge fast, so a subproblem is solved as well as its y deserves, and no better.
    As long as ∇f = 0 where subproblems start, the multipliers of a solution are 0: y stays, each
    subproblem is solved to eps_phi/2, and β grows until its solutions are feasible.
    """

    def __init__(self, residual: float, eps_phi: float) -> None:
        super().__init__(residual, eps_phi)
        self.constant = True

    def begin(self, psi: Smooth, g: Proximable, x: Tensor) -> None:
        """Take the start of the next subproblem into account."""
        self.constant = self.constant and isinstance(psi, Subproblem) and psi.is_flat(x)
        residual = 0.0 if self.constant else g.distance(x, psi.value_and_grad(x)[1])
        self.value = max(self.floor, min(_NEWTON * residual, 1e300))

    def advance(self, dual: DualState) -> None:
        """The next subproblem decides."""

    def hold(self, violation: float, inner: InnerResult, nu: float) -> float | None:
        """Growth of β while f is constant, else as above."""
        return _GROWTH if self.constant else super().hold(violation, inner, nu)


class PenaltyTolerance:
    """The paper's tolerance λ/β, which keeps decreasing if β does not grow.

    Args:
        lam: factor λ, > 0.
        dual: the penalty β.
    """

    decrease = DECREASE_GIVEN_LAM
    constant = False

    def __init__(self, lam: float, dual: DualState) -> None:
        self.lam = lam
        self.value = lam / dual.beta

    def begin(self, psi: Smooth, g: Proximable, x: Tensor) -> None:
        """Take the start of the next subproblem into account."""

    def advance(self, dual: DualState) -> None:
        """Set the tolerance of the next subproblem."""
        if self.lam / dual.beta < self.value:
            self.value = self.lam / dual.beta
        else:
            self.value *= min(_SHRINK, 1 / dual.omega)

    def hold(self, violation: float, inner: InnerResult, nu: float) -> float | None:
        """None: Algorithm 1 moves y after every subproblem."""
        return None


InnerTolerance: TypeAlias = AutomaticTolerance | PenaltyTolerance


def inner_tolerance(
    lam: float | None, dual: DualState, residual: float, eps_phi: float, *, newton: bool
) -> InnerTolerance:
    """The rule λ/β if λ is given, else the automatic one for the kind of solver."""
    if lam is None:
        # Without constraints there is one subproblem, the problem itself.
        if newton and len(dual.y):
            return NewtonTolerance(residual, eps_phi)
        return AutomaticTolerance(residual if len(dual.y) else 0.0, eps_phi)
    return PenaltyTolerance(lam, dual)
