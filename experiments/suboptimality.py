"""The stop of the paper's GEVP experiment: violation and suboptimality, not the dual residual."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from experiments.problems.instances import Instance
from torch_powalm import OuterRecord, Residuals, Solution, Status


class End(NamedTuple):
    """The outer iteration at which a run was stopped, and its point."""

    record: OuterRecord
    x: Tensor

    def solution(self, solution: Solution) -> Solution:
        """The solution at this point; "converged" stands for this stop."""
        record = self.record
        return replace(
            solution,
            x=self.x,
            status=Status.CONVERGED,
            residuals=Residuals(record.primal_residual, 0.0, record.dual_residual, 0.0),
            objective=record.objective,
            missing=(),
        )


class SuboptimalityStop:
    """Callback that ends a run when ‖A(x)‖ ≤ eps and |f(x) − f*| ≤ eps.

    Args:
        f_star: the smallest objective.
        eps: tolerance of both.
    """

    def __init__(self, f_star: float, eps: float) -> None:
        self.f_star, self.eps = f_star, eps
        self.end: End | None = None

    def __call__(self, record: OuterRecord, x: Tensor) -> bool:
        """Whether the run ends here."""
        gap = abs(record.objective - self.f_star)
        if record.primal_residual <= self.eps and gap <= self.eps:
            self.end = End(record, x)
        return self.end is not None


def suboptimality_stop(name: str, instance: Instance, eps: float) -> SuboptimalityStop | None:
    """The stop that a config names: None for "residuals", which `power_alm` tests itself."""
    if name == "residuals":
        return None
    if name != "suboptimality":
        raise ValueError(f"stop must be 'residuals' or 'suboptimality', got {name!r}")
    if instance.f_star is None:
        raise ValueError("stop must be 'residuals' where f* is not known, got 'suboptimality'")
    return SuboptimalityStop(instance.f_star, eps)
