"""The record of one outer iteration."""

from __future__ import annotations

from torch_powalm.result import DualRecord, InnerResult, OuterRecord
from torch_powalm.solving.budget import Budget
from torch_powalm.solving.kkt_certificate import Certified


def outer_record(
    step: DualRecord, point: Certified, inner: InnerResult, budget: Budget
) -> OuterRecord:
    """What the iteration did, measured at its point."""
    spent = budget.spent
    return OuterRecord(
        k=step.k,
        primal_residual=point.residuals.primal,
        dual_residual=point.residuals.dual,
        objective=point.objective,
        beta=step.beta,
        sigma=step.sigma,
        y_norm=step.y_norm,
        inner_iterations=inner.iterations,
        inner_status=inner.status,
        function_calls=spent.function,
        gradient_calls=spent.gradient,
        seconds=budget.seconds,
        multiplier=point.multiplier,
    )
