"""The solution of a run: its best point, certified once more in the user's units."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from torch_powalm.result import Records, Solution, Status
from torch_powalm.solving.budget import Budget, BudgetUsedUpError
from torch_powalm.solving.kkt_certificate import Certified
from torch_powalm.solving.problem import Problem
from torch_powalm.solving.settings import Tolerances


def final_solution(
    best: Certified,
    status: Status,
    problem: Problem,
    original: Problem,
    tolerances: Tolerances,
    records: Records,
    budget: Budget,
    state: dict[str, Any],
) -> Solution:
    """Return the solution; a run that converged in scaled units only counts as stalled.

    Args:
        best: the best point of the run.
        status: how the run ended.
        problem: the problem that was solved, perhaps scaled.
        original: the same in the user's units.
        tolerances: when a point counts as a solution.
        records: the outer iterations.
        budget: what the run has spent.
        state: what a later run needs to continue.
    """
    y, residuals = problem.multiplier(best.y), best.residuals
    if problem is not original:
        budget.noticed = True  # the last evaluation is exempt from all limits but that of time
        with suppress(BudgetUsedUpError):
            residuals = original.residuals(best.x, y)
        ratio = tolerances.ratio(residuals.primal, residuals.dual)
        if status is Status.CONVERGED and not ratio <= 1:
            status = Status.STALLED
    spent = budget.spent
    return Solution(
        x=best.x,
        y=y,
        status=status,
        residuals=residuals,
        objective=best.objective,
        records=records,
        function_calls=spent.function,
        gradient_calls=spent.gradient,
        constraint_calls=spent.constraint,
        seconds=budget.seconds,
        missing=tolerances.missing(residuals),
        state=state,
    )
