"""Numbers of the report, computed from the table of runs."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from experiments.constraint_bench.bench_table import Row
from experiments.constraint_bench.methods import METHODS
from experiments.constraint_bench.tasks import TASKS

RECOMMENDED = "recommended"
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Run:
    """A row with its regret.

    Args:
        row: the row.
        feasible: whether all violations on the training data are within their tolerances.
        test_feasible: the same on the test data.
        regret: (merit − best) / max(best, resolution of the task) against the best feasible run of
            any method, setting and units with the same task, base and seed; infinite if this run
            is not feasible, and nan if no other method has run with them.
    """

    row: Row
    feasible: bool
    test_feasible: bool
    regret: float

    def __getitem__(self, column: str) -> str:
        return self.row[column]


def with_regret(rows: Sequence[Row]) -> list[Run]:
    """Judge each row against the best feasible one of its task, base and seed; ours come first."""
    order = list(METHODS)
    rows = sorted(rows, key=lambda row: order.index(row["method"]))
    best: dict[tuple[str, str, str], float] = defaultdict(lambda: math.inf)
    methods: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for row in rows:
        methods[_instance(row)].add(row["method"])
        if is_feasible(row):
            best[_instance(row)] = min(best[_instance(row)], float(row["merit"]))
    return [
        Run(
            row,
            is_feasible(row),
            float(row["test_excess"]) <= 1,
            _regret(row, best[_instance(row)]) if len(methods[_instance(row)]) > 1 else math.nan,
        )
        for row in rows
    ]


def is_feasible(row: Row) -> bool:
    """Whether a run ended feasible on the training data."""
    return float(row["excess"]) <= 1


def groups(runs: Iterable[Run], key: Callable[[Run], K]) -> dict[K, list[Run]]:
    """Runs by key, in the order of their appearance."""
    found: dict[K, list[Run]] = defaultdict(list)
    for run in runs:
        found[key(run)].append(run)
    return dict(found)


def tuned(runs: Sequence[Run]) -> list[Run]:
    """The runs of each method with the setting that hindsight chooses for each task.

    Only natural units have all settings. The setting with the most feasible runs is chosen, among
    equals that with the lowest median regret, then merit.
    """
    chosen = []
    natural = [run for run in runs if run["units"] == "natural"]
    for part in groups(natural, lambda run: (run["task"], run["base"], run["method"])).values():
        chosen += max(groups(part, lambda run: run["setting"]).values(), key=_quality)
    return chosen


def recommended(runs: Sequence[Run]) -> list[Run]:
    """The runs with the recommended settings, in all units."""
    return [run for run in runs if run["setting"] == RECOMMENDED]


def share(runs: Sequence[Run], *, test: bool = False) -> float:
    """Share of feasible runs."""
    return statistics.mean(run.test_feasible if test else run.feasible for run in runs)


def quantile(runs: Sequence[Run], q: float) -> float:
    """A quantile of all regrets that are known; runs that are not feasible have an infinite one."""
    regrets = sorted(run.regret for run in runs if not math.isnan(run.regret))
    if not regrets:
        return math.nan
    return regrets[min(len(regrets) - 1, math.ceil(q * len(regrets)) - 1)]


def feasible_median(runs: Sequence[Run]) -> float:
    """The median regret of the feasible runs; nan if there is none."""
    regrets = [run.regret for run in runs if run.feasible and not math.isnan(run.regret)]
    return statistics.median(regrets) if regrets else math.nan


def median(runs: Sequence[Run], column: str) -> float:
    """The median of a column; nan counts as infinite."""
    values = [float(run[column]) for run in runs]
    return statistics.median(math.inf if math.isnan(value) else value for value in values)


def _quality(runs: Sequence[Run]) -> tuple[float, float, float]:
    regret = quantile(runs, 0.5)
    return share(runs), 0.0 if math.isnan(regret) else -regret, -median(runs, "merit")


def _instance(row: Row) -> tuple[str, str, str]:
    return row["task"], row["base"], row["seed"]


def _regret(row: Row, best: float) -> float:
    if not is_feasible(row):
        return math.inf
    return (float(row["merit"]) - best) / max(best, TASKS[row["task"]].resolution)
