"""Tolerance: how exactly the next subproblem is solved, and when the same one is solved further."""

from torch_powalm.dual import DualState
from torch_powalm.result import InnerResult, Status

_FIRST = 0.01  # first automatic tolerance, over the residual at x_1
_SHRINK = 0.3  # each further one, over the last
_ENOUGH = 0.5  # of eps_A: a violation that needs no better multipliers
_TARGET = 0.3  # of eps_A: the violation that a subproblem to be solved further should leave
_FALL = 0.1  # smallest factor of β on this way


class Tolerance:
    """Inner tolerance λ/β, with a sequence of its own where λ is None or β does not grow.

    Args:
        lam: factor λ, > 0; None for a sequence that falls from `residual` to eps_phi/2.
        dual: the penalty β.
        residual: stationarity of x_1.
        eps_phi: tolerance of the dual residual, > 0.
    """

    def __init__(self, lam: float | None, dual: DualState, residual: float, eps_phi: float) -> None:
        self.lam, self.floor = lam, 0.5 * eps_phi
        first = max(self.floor, min(_FIRST * residual, 1e300))
        self.value = first if lam is None else lam / dual.beta

    def follow(self, dual: DualState) -> None:
        """Fall with β, or without it."""
        if self.lam is None:
            self.value = max(self.floor, _SHRINK * self.value)
        elif self.lam / dual.beta < self.value:
            self.value = self.lam / dual.beta
        else:
            self.value *= min(_SHRINK, 1 / dual.omega)

    def hold(self, violation: float, inner: InnerResult, nu: float) -> float | None:
        """Factor of β where y stays: the point is feasible, and its subproblem can go further.

        Another y would draw ‖A‖ to 0, where for ν < 1 the curvature of ψ has no bound. Since
        β‖A‖^ν is the distance of y from its limit, the factor is the one that lets ‖A‖ grow to
        _TARGET eps_A: ψ becomes less stiff. For ν = 1 the curvature is β itself, and β stays.

        Args:
            violation: that of the residual, over eps_A: a multiplier of an inactive inequality is
                not in the primal one.
            inner: how the subproblem ended.
            nu: exponent ν of the penalty.
        """
        if self.lam is not None or violation > _ENOUGH:
            return None
        if inner.status is not Status.CONVERGED or self.value <= self.floor:
            return None
        return 1.0 if nu == 1 else min(1.0, max(_FALL, (violation / _TARGET) ** nu))
