"""Rows of the benchmarks: what they hold, and the CSVs they are kept in."""

import csv
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.benchmarks.watch import Outcome, Task

RESULTS = Path(__file__).parent.parent / "results" / "benchmarks"
REFERENCE = "ours ν = 1"
COLUMNS = (
    *("task", "seed", "method", "oracle", "setting", "stage", "status", "primal", "dual"),
    *("multiplier", "objective", "function_calls", "gradient_calls", "wall", "cpu"),
    *("wall_ratio", "cpu_ratio", "rounds"),
)
Row = dict[str, Any]


def row_of(task: Task, method: str, oracle: str, setting: str, stage: str) -> Row:
    """What is run, with room for its numbers."""
    row = dict.fromkeys(COLUMNS, "")
    known = {"task": task.name, "seed": task.seed, "method": method, "oracle": oracle}
    return row | known | {"setting": setting, "stage": stage}


def numbers(outcomes: Sequence[Outcome]) -> Row:
    """How runs of one method on one instance ended, and medians of their times."""
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
        "function_calls": last.function_calls or "",  # not countable where it is 0
        "gradient_calls": last.gradient_calls or "",
        "wall": f"{statistics.median(o.wall for o in outcomes):.4g}",
        "cpu": f"{statistics.median(o.cpu for o in outcomes):.4g}",
    }


def ratios(outcomes: Sequence[Outcome], reference: Sequence[Outcome] | None) -> Row:
    """Medians of the ratios of times to those of the reference in the same rounds."""
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
    """The rows of a CSV, none where there is none."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: Sequence[Row], columns: Sequence[str] = COLUMNS) -> None:
    """A CSV of these columns; what else a row has is left out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
