"""The table of runs: one row for each job, appended when the job is done."""

import csv
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.atomic_files import read_csv, write_csv
from experiments.constraint_bench.single_run import Outcome
from experiments.constraint_bench.task import UNITS

RESULTS = Path(__file__).parent.parent / "results" / "constraint_bench" / "bench.csv.gz"
UNITLESS = ("unconstrained", "penalty", "penalty by tolerance")  # run in natural units only
Row = dict[str, str]


class Job(NamedTuple):
    """Identifies a run."""

    task: str
    method: str
    setting: str
    units: str
    base: str
    seed: int


COLUMNS = (*Job._fields, *Outcome._fields)


def plan(
    tasks: Iterable[str],
    settings: dict[str, Sequence[str]],
    units: Sequence[str],
    base: str,
    seeds: int,
) -> list[Job]:
    """The jobs of a sweep, seed by seed so that a stopped sweep is balanced.

    In natural units every setting runs, in the others the recommended one. A penalty of fixed
    weight in other units is one of another weight, and is not repeated. SGD does not run with the
    loss in other units: its learning rate has the units of the loss.
    """
    jobs = []
    for seed, task, (method, names), unit in itertools.product(
        range(seeds), tasks, settings.items(), units
    ):
        natural = unit == "natural"
        if not natural and (method in UNITLESS or (base == "sgd" and UNITS[unit].loss != 1)):
            continue
        chosen = names if natural else names[:1]
        jobs += [Job(task, method, setting, unit, base, seed) for setting in chosen]
    return jobs


def job_of(row: Row) -> Job:
    """The job of a row."""
    return Job(*(row[name] for name in Job._fields[:-1]), seed=int(row["seed"]))


def read(path: Path) -> list[Row]:
    """The rows of a table, in a fixed order; none if there is no table."""
    rows = read_csv(path) if path.exists() else []
    return sorted(rows, key=job_of)


def append(path: Path, job: Job, outcome: Outcome) -> None:
    """Add the row of a finished job."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(COLUMNS)
        writer.writerow([*job, *map(_cell, outcome)])


def forget(path: Path, methods: Sequence[str]) -> None:
    """Remove the rows of some methods."""
    if methods and path.exists():
        write_csv(path, [row for row in read(path) if row["method"] not in methods], COLUMNS)


def keep(source: Path, results: Path = RESULTS) -> int:
    """Merge a table into the committed one; a run that is there already is replaced."""
    merged = {job_of(row): row for path in (results, source) for row in read(path)}
    write_csv(results, [merged[job] for job in sorted(merged)], COLUMNS)
    return len(merged)


def _cell(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value
