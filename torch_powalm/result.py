"""Records and statuses that both routes report, and how they print."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from importlib import import_module
from typing import Any, NamedTuple

from torch import Tensor


class ConstraintWarning(UserWarning):
    """Something about the constraints of a training needs attention."""


class Violation(NamedTuple):
    """How far a block is from feasible: largest entry and norm of |A(x)| or max(B(x), 0).

    `never_seen` lists the entries that no batch has contained so far (an absent class); if it lists
    all, max and norm are nan. Blocks with an index list at most 1,000, and also report `quantiles`
    of the violation over all entries seen and the indices of the `worst` ones.
    """

    max: float
    norm: float
    never_seen: tuple[int, ...] = ()
    quantiles: Mapping[float, float] | None = None
    worst: tuple[int, ...] = ()


@dataclass(frozen=True)
class DualRecord:
    """One multiplier update: the residual it saw and what it changed.

    Args:
        k: index of the update, from 1.
        primal_residual: ‖(A(x), max(B(x), 0))‖.
        beta: the penalty in force before the update.
        sigma: the dual step that was taken.
        y_norm: ‖y‖ after the update.
        violations: the residual by block, if blocks have names.
        signals: what needs attention at this update, as in the warnings of `ConstraintWarning`.
    """

    k: int
    primal_residual: float
    beta: float
    sigma: float
    y_norm: float
    violations: Mapping[str, Violation] = field(default_factory=dict)
    signals: tuple[str, ...] = ()

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


class Status(Enum):
    """How a run ended; inner solvers use the first five, and INTERRUPTED inside `power_alm`."""

    CONVERGED = "converged"
    MAX_ITER = "max_iter"
    BUDGET = "budget"
    STALLED = "stalled"
    NOT_FINITE = "not_finite"
    MAX_OUTER = "max_outer"
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class InnerResult:
    """Result of `solvers.run`.

    Args:
        x: the point; in dom g if the start is, or after one iteration.
        residual: ‖v‖ for some v ∈ ∂(ψ + g)(x), measured at x even if the run did not converge.
        iterations: iterations of the solver.
        status: CONVERGED, MAX_ITER, BUDGET, STALLED or NOT_FINITE (INTERRUPTED in `power_alm`).
    """

    x: Tensor
    residual: float
    iterations: int
    status: Status


class Residuals(NamedTuple):
    """Certificate of a point x with multipliers y.

    Args:
        equality: ‖A(x)‖.
        inequality: ‖max(B(x), 0)‖.
        stationarity: dist(−∇f(x) − Jᵀy, ∂g(x)).
        complementarity: the largest of all |y_i B_i(x)| and all −y_i.
    """

    equality: float
    inequality: float
    stationarity: float
    complementarity: float

    @property
    def primal(self) -> float:
        """‖(A(x), max(B(x), 0))‖."""
        return math.hypot(self.equality, self.inequality)

    @property
    def dual(self) -> float:
        """The larger of stationarity and complementarity."""
        return max(self.stationarity, self.complementarity)


@dataclass(frozen=True)
class OuterRecord:
    """One outer iteration; counts and seconds run from the start of the solve.

    Args:
        k: index of the iteration, from 1.
        primal_residual: ‖(A(x), max(B(x), 0))‖.
        dual_residual: the larger of stationarity and complementarity, with the better multiplier.
        objective: f(x) + g(x).
        beta: the penalty of the subproblem.
        sigma: the dual step taken after it.
        y_norm: ‖y‖ after this step.
        inner_iterations: iterations of the inner solver in this subproblem.
        inner_status: how the inner solver ended.
        function_calls: evaluations of f.
        gradient_calls: evaluations of ∇f.
        seconds: wall time.
        multiplier: the one that certifies: "weight" for y + β∇φ, "least squares" or "active set".
    """

    k: int
    primal_residual: float
    dual_residual: float
    objective: float
    beta: float
    sigma: float
    y_norm: float
    inner_iterations: int
    inner_status: Status
    function_calls: int
    gradient_calls: int
    seconds: float
    multiplier: str = "weight"

    def __str__(self) -> str:
        return "  ".join(_cell(getattr(self, f.name)).rjust(len(f.name)) for f in fields(self))


class Records(list[OuterRecord]):
    """The outer iterations of a run, in order; `str` is a table."""

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary of plain values per iteration."""
        return [{**asdict(record), "inner_status": record.inner_status.value} for record in self]

    def to_dataframe(self) -> Any:
        """A pandas.DataFrame with one row per iteration; needs pandas."""
        pandas = import_module("pandas")
        return pandas.DataFrame(self.to_dicts(), columns=[f.name for f in fields(OuterRecord)])

    def __str__(self) -> str:
        header = "  ".join(f.name for f in fields(OuterRecord))
        return "\n".join([header, *map(str, self)])


@dataclass(frozen=True)
class Solution:
    """Result of `power_alm`: a point, its multipliers, and their certificate.

    Args:
        x: the last point if the run converged, else the best one.
        y: the multiplier of the certificate, equalities first.
        status: how the run ended; CONVERGED only if the residuals hold.
        residuals: of (x, y), recomputed.
        objective: f(x) + g(x).
        records: one per outer iteration.
        function_calls: evaluations of f.
        gradient_calls: evaluations of ∇f.
        constraint_calls: evaluations of the constraints.
        seconds: wall time.
        state: pass it to `power_alm(problem, state["x"], state=…)` to resume.
        missing: which residuals are above their tolerance, as text; empty if none is.
    """

    x: Tensor
    y: Tensor
    status: Status
    residuals: Residuals
    objective: float
    records: Records
    function_calls: int
    gradient_calls: int
    constraint_calls: int
    seconds: float
    state: dict[str, Any] = field(repr=False)
    missing: tuple[str, ...] = ()

    @property
    def converged(self) -> bool:
        """Whether both residuals hold."""
        return self.status is Status.CONVERGED

    def __str__(self) -> str:
        missing = f" ({', '.join(self.missing)})" if self.missing else ""
        inner = sum(record.inner_iterations for record in self.records)
        return (
            f"status            {self.status.value}{missing}\n"
            f"primal residual   {self.residuals.primal:.3e}\n"
            f"dual residual     {self.residuals.dual:.3e}\n"
            f"objective         {self.objective:.10g}\n"
            f"iterations        {len(self.records)} outer, {inner} inner\n"
            f"calls             {self.function_calls} function, {self.gradient_calls} gradient, "
            f"{self.constraint_calls} constraint\n"
            f"seconds           {self.seconds:.3f}"
        )

    def plot(self) -> Any:
        """Both residuals against gradient calls on a log axis; needs matplotlib."""
        import matplotlib.pyplot as plt

        calls = [record.gradient_calls for record in self.records]
        _, ax = plt.subplots()
        ax.semilogy(calls, [r.primal_residual for r in self.records], label="primal residual")
        ax.semilogy(calls, [r.dual_residual for r in self.records], label="dual residual")
        ax.set_xlabel("gradient calls")
        ax.legend()
        return ax


def _cell(value: Any) -> str:
    value = value.value if isinstance(value, Status) else value
    return f"{value:.3e}" if isinstance(value, float) else str(value)
