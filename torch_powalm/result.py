"""What the two routes report: frozen records without behaviour."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Violation(NamedTuple):
    """How far a block is from feasible: largest entry and norm of |A(x)| or max(B(x), 0)."""

    max: float
    norm: float


@dataclass(frozen=True)
class DualRecord:
    """What one multiplier update saw and did.

    Args:
        k: index of the update, from 1.
        primal_residual: ‖(A(x), max(B(x), 0))‖.
        beta: the penalty in force before the update.
        sigma: the dual step that was taken.
        y_norm: ‖y‖ after the update.
        violations: the residual by block, where blocks have names.
    """

    k: int
    primal_residual: float
    beta: float
    sigma: float
    y_norm: float
    violations: Mapping[str, Violation] = field(default_factory=dict)

    def __str__(self) -> str:
        blocks = ", ".join(f"{name} {v.max:.2e}" for name, v in self.violations.items())
        return (
            f"update {self.k}: |A| {self.primal_residual:.2e}, beta {self.beta:.2e}, "
            f"sigma {self.sigma:.2e}, |y| {self.y_norm:.2e}"
            + (f" (max {blocks})" if blocks else "")
        )


class TrainingResiduals(NamedTuple):
    """Certificate of a training point: dist(−∇_x L_β, ∂g) and ‖(A, max(B, 0))‖."""

    dual_residual: float
    primal_residual: float
