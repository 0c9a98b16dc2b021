"""The paper's own numbers, from results/paper: counts and curves of its figures, its tables."""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import fmean

FOLDER = Path(__file__).parent / "results" / "paper"
Curve = list[tuple[float, float]]  # count of iterations or gradients, value


def counts(experiment: str) -> dict[float, float]:
    """Iterations or gradients by ν: from the figure, or the mean of the table if there is none."""
    found = {float(row["nu"]): float(row["count"]) for row in _rows("counts", experiment)}
    return found or {nu: fmean(values) for nu, values in trials(experiment).items()}


def trials(experiment: str, column: str = "count") -> dict[float, list[float]]:
    """A column of a table's ten trials by ν; empty if the paper has no such table."""
    found = defaultdict(list)
    for row in _rows("trials", experiment):
        if row[column]:
            found[float(row["nu"])].append(float(row[column]))
    return dict(found)


def curves(experiment: str, panel: str) -> dict[float, Curve]:
    """The curves of one panel of a figure, "violation" or "suboptimality", by ν."""
    found: dict[float, Curve] = defaultdict(list)
    for row in _rows("curves", experiment):
        if row["panel"] == panel:
            found[float(row["nu"])].append((float(row["count"]), float(row["value"])))
    return dict(found)


def _rows(name: str, experiment: str) -> list[dict[str, str]]:
    with (FOLDER / f"{name}.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["experiment"] == experiment]
