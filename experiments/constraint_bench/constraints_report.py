"""Write experiments/CONSTRAINTS.md and its figures from the committed table of runs.

    python -m experiments.constraint_bench.constraints_report [--keep outputs/.../runs.csv]

--keep first adds a table of new runs to the committed one.
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.atomic_files import write_text
from experiments.constraint_bench import bench_table, constraints_figures
from experiments.constraint_bench.bench_numbers import (
    Run,
    feasible_median,
    groups,
    median,
    quantile,
    recommended,
    share,
    tuned,
    with_regret,
)
from experiments.constraint_bench.published import PUBLISHED
from experiments.constraint_bench.report_text import HEADER, HOW
from experiments.constraint_bench.splits import DEVELOPMENT, JUDGMENT
from experiments.constraint_bench.task import UNITS

REPORT = Path(__file__).parent.parent / "CONSTRAINTS.md"


def main() -> None:
    """Keep new runs, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path)
    keep = parser.parse_args().keep
    if keep is not None:
        print(f"{bench_table.RESULTS}: {bench_table.keep(keep)} runs")
    runs = with_regret(bench_table.read(bench_table.RESULTS))
    constraints_figures.draw(shown(of_base(runs, "adam")), bench_table.RESULTS.parent)
    write_text(REPORT, text(runs))


def text(runs: Sequence[Run]) -> str:
    """The report."""
    parts = [HEADER]
    for base, name in (("adam", "Adam"), ("sgd", "SGD with momentum")):
        for half, tasks in (("judgment", JUDGMENT), ("development", DEVELOPMENT)):
            part = [run for run in of_base(runs, base) if run["task"] in tasks]
            parts += section(f"{half.capitalize()} half, {name}", part, tasks)
    parts += ["## Published numbers\n", published(runs), HOW]
    return "\n".join(parts)


def section(title: str, runs: Sequence[Run], tasks: Sequence[str]) -> list[str]:
    """Tables of one half with one base."""
    if not runs:
        return [f"## {title}\n", "No runs yet.\n"]
    missing = [task for task in tasks if task not in {run["task"] for run in runs}]
    note = f" No runs yet of {', '.join(missing)}." if missing else ""
    seeds = len({run["seed"] for run in runs})
    return [
        f"## {title}\n",
        f"{len(runs):,} runs, {seeds} seed{'s' * (seeds > 1)}.{note}\n",
        "As recommended, in all units that were run:\n",
        methods_table(recommended(runs)),
        "Tuned in hindsight for each task, in natural units:\n",
        methods_table(tuned(runs)),
        "Feasible runs in training by unit system, as recommended:\n",
        cross_table(recommended(runs), "units", list(UNITS), feasible_count),
        "Feasible runs in training by task, as recommended, in all units:\n",
        cross_table(recommended(runs), "task", tasks, feasible_count),
        "Merit in natural units, tuned in hindsight (median over seeds; * where not all runs are"
        " feasible, – where none is):\n",
        cross_table(tuned(runs), "task", tasks, merit_cell),
        "Violation over its tolerance in training / testing, tuned in hindsight (median):\n",
        cross_table(tuned(runs), "task", tasks, excess_cell),
    ]


def methods_table(runs: Sequence[Run]) -> str:
    """One row for each method."""
    rows = []
    for method, part in groups(runs, lambda run: run["method"]).items():
        cells = [
            f"{feasible_count(part)} ({100 * share(part):.0f} %)",
            f"{100 * share(part, test=True):.0f} %",
            percent(quantile(part, 0.5)),
            percent(quantile(part, 0.9)),
            percent(feasible_median(part)),
        ]
        rows.append([method, *cells])
    columns = ["method", "feasible in training", "in testing", "median regret", "90th percentile"]
    return table([*columns, "median of feasible runs"], rows)


def cross_table(
    runs: Sequence[Run], column: str, values: Sequence[str], cell: Callable[[Sequence[Run]], str]
) -> str:
    """One row for each value of a column that occurs, one column for each method."""
    methods = list(groups(runs, lambda run: run["method"]))
    found = groups(runs, lambda run: (run[column], run["method"]))
    rows = [
        [value, *(cell(found[value, m]) if (value, m) in found else "" for m in methods)]
        for value in values
        if any((value, m) in found for m in methods)
    ]
    return table([column, *methods], rows)


def published(runs: Sequence[Run]) -> str:
    """Published numbers beside rerun ones."""
    rows = []
    for entry in PUBLISHED:
        part = [
            run
            for run in of_base(runs, "adam")
            if (run["task"], run["method"], run["setting"], run["units"]) == entry.key
        ]
        found = [
            json.loads(run["details"] or "{}") | {"merit": float(run["merit"])} for run in part
        ]
        values = sorted(numbers[entry.number] for numbers in found)
        ours = f"{values[0]:.3g} to {values[-1]:.3g}, {len(values)} seeds" if values else "not run"
        rows.append([entry.what, entry.source, entry.value, ours, entry.difference])
    return table(["number", "source", "published", "here", "what differs"], rows)


def of_base(runs: Sequence[Run], base: str) -> list[Run]:
    """Runs with a base optimizer."""
    return [run for run in runs if run["base"] == base]


def shown(runs: Sequence[Run]) -> list[Run]:
    """The runs of the judgment half, or of the other one as long as there are none."""
    return [run for run in runs if run["task"] in JUDGMENT] or list(runs)


def feasible_count(runs: Sequence[Run]) -> str:
    """Feasible runs of all."""
    return f"{sum(run.feasible for run in runs)} of {len(runs)}"


def merit_cell(runs: Sequence[Run]) -> str:
    """Median merit of the feasible runs."""
    feasible = [run for run in runs if run.feasible]
    if not feasible:
        return "–"
    return f"{median(feasible, 'merit'):.3g}{'*' * (len(feasible) < len(runs))}"


def excess_cell(runs: Sequence[Run]) -> str:
    """Median excess in training and in testing."""
    return f"{median(runs, 'excess'):.2g} / {median(runs, 'test_excess'):.2g}"


def percent(value: float) -> str:
    """A regret; "–" where there is none."""
    return f"{100 * value:.1f} %" if math.isfinite(value) else "–"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    main()
