"""Rows of the comparisons of solvers, and their CSV files."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.atomic_files import read_csv
from experiments.benchmarks.timed_run import Outcome, Task

RESULTS = Path(__file__).parent.parent / "results" / "benchmarks"
REFERENCE = "ours ν = 1"
COLUMNS = (
    *("task", "seed", "method", "oracle", "setting", "stage", "status", "primal", "dual"),
    *("multiplier", "objective", "function_calls", "gradient_calls", "wall", "cpu"),
    *("wall_ratio", "cpu_ratio", "rounds"),
)
Row = dict[str, Any]


def row_of(task: Task, method: str, oracle: str, setting: str, stage: str) -> Row:
    """The row of a run, its numbers still empty."""
    row = dict.fromkeys(COLUMNS, "")
    known = {"task": task.name, "seed": task.seed, "method": method, "oracle": oracle}
    return row | known | {"setting": setting, "stage": stage}


def numbers(outcomes: Sequence[Outcome]) -> Row:
    """Status and residuals of the runs of one method on one instance, medians of their times."""
    last = outcomes[-1]
    found: Row = {"status": last.status, "rounds": len(outcomes)}
    if last.status.startswith("cannot"):
        return found
    if last.measured is not None:
        found |= {
            "primal": f"{last.measured.primal:.3e}",
            "dual": f"{last.measured.dual:.3e}",
            "objective": f"{last.measured.objective:.10g}",
            "multiplier": last.measured.multiplier,
        }
    return found | {
        "function_calls": last.function_calls or "",  # 0 if it cannot be counted
        "gradient_calls": last.gradient_calls or "",
        "wall": f"{statistics.median(o.wall for o in outcomes):.4g}",
        "cpu": f"{statistics.median(o.cpu for o in outcomes):.4g}",
    }


def ratios(outcomes: Sequence[Outcome], reference: Sequence[Outcome] | None) -> Row:
    """Medians of the ratios to the times of the reference in the same rounds."""
    if reference is None or outcomes[-1].wall == 0:
        return {}
    found = {}
    for clock in ("wall", "cpu"):
        mine = [getattr(o, clock) for o in outcomes]
        other = [getattr(o, clock) for o in reference]
        if len(mine) == len(other):
            value = statistics.median(a / b for a, b in zip(mine, other, strict=True))
        else:
            value = statistics.median(mine) / statistics.median(other)
        found[f"{clock}_ratio"] = f"{value:.3g}"
    return found


def read(path: Path) -> list[Row]:
    """The rows of a CSV; none if there is no file."""
    return list(read_csv(path)) if path.exists() else []
