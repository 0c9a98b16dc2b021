"""BENCHMARKS.md: all comparisons, from their CSVs.

python -m experiments.benchmarks.benchmark_report [--results FOLDER] [--report FILE]
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments.atomic_files import write_text
from experiments.benchmarks import charts
from experiments.benchmarks.benchmark_claims import answers
from experiments.benchmarks.families import FAMILIES
from experiments.benchmarks.machine import read_machines
from experiments.benchmarks.outcome_table import RESULTS, Row, read
from experiments.benchmarks.peer_statistics import at_lowest, finals, key_of, medians
from experiments.benchmarks.robust import BUDGET, ENDLESS, UNRUN
from experiments.benchmarks.scaling import slope
from experiments.benchmarks.summary import summary_lines, two
from experiments.benchmarks.tasks import plans
from experiments.tables import MISSING, markdown

SIZES = {"clustering": "points n", "training": "constraints m"}
REPORT = Path(__file__).parent.parent / "BENCHMARKS.md"
HEAD = """# Comparison with other packages

`make bench` writes this report (the last step alone: `python -m
experiments.benchmarks.benchmark_report`) from the CSVs in [results/benchmarks](results/benchmarks)
and results/overhead.csv. All methods are measured by the same code,
[benchmarks/ruler.py](benchmarks/ruler.py). The docstring of each file in
[benchmarks/peers](benchmarks/peers) says how that peer was tuned. Ours always runs with its
defaults. Times are CPU times of one thread, as ratios of runs in one process, which alternate if
runs are short; times of training steps are wall times. Failures are shown; a time-out counts as
one.
"""
RATIOS = (
    "A ratio below 1 means that we are faster. The best peer is the fastest of those that solved "
    "the most instances, with the better of two settings: the recommended one, and the best one of "
    "its grid on the first of these instances. Ours has its defaults, which were chosen on other "
    "instances. All these problems have many local solutions; the last column counts the instances "
    "on which a method reached the lowest objective that any method found.\n"
)


def text(results: Path) -> str:
    """The whole report."""
    rows = read(results / "deterministic.csv")
    robust, sizes = read(results / "robust.csv"), read(results / "scaling.csv")
    overhead = read(results.parent / "overhead.csv")
    parts = [
        HEAD,
        "## Summary\n",
        markdown(summary_lines(rows, overhead, robust)),
        RATIOS,
        "## Claims and evidence\n",
        markdown(answers(rows, robust, sizes)),
        "## Deterministic problems\n",
        budgets(),
    ]
    for name in plans(None):
        if any(row["task"] == name for row in rows):
            parts += [f"### {name}\n", markdown(methods(rows, name)), failures(rows, name)]
    parts += [
        "![deterministic](results/benchmarks/deterministic.png)\n",
        "## Random problems\n",
        markdown(families(robust)),
        "![robust](results/benchmarks/robust.png)\n",
        profiles(robust),
        "## Scaling\n",
        "The first gradient calls of a clustering with ten blobs, r = 20; memory without D, in "
        "vectors of the size of X and in MB:\n",
        markdown(scaling(sizes, "clustering")),
        "Training with constraints x_i² = 1; memory including model and optimizer:\n",
        markdown(scaling(sizes, "training")),
        slopes(sizes),
        "![scaling](results/benchmarks/scaling.png)\n",
        "## Training overhead\n",
        "Time of a step over that of a hand-written augmented Lagrangian, median over rounds.\n",
        markdown(training(overhead)),
        "![overhead](results/benchmarks/overhead.png)\n",
        "## Machine and versions\n",
        machine(results),
    ]
    return "\n".join(parts)


def budgets() -> str:
    """Time limits and settings of the runs."""
    trial = ", ".join(f"{plan.trial:g} s ({name})" for name, plan in plans(None).items())
    return (
        f"CPU time for a setting in the trials: {trial}; in the finals as much or more. Every peer "
        "is tuned on the first instance of each task. Its recommended settings and the best of its "
        "grid run on all instances if they reached the tolerances there. Ratios, counts and "
        "residuals are medians over the solved instances; the instances of n=1000 are three starts "
        "on the same images.\n"
    )


def profiles(robust: Sequence[Row]) -> str:
    """Text about the random problems."""
    own = [float(row["cpu"]) for row in robust if row["method"].startswith("ours")]
    longest = max(own, default=0.0)
    unrun = f"{sum(row['status'] == UNRUN for row in robust)} of {len(robust)}"
    return (
        "Performance profiles (Dolan and Moré): the share of the problems that a method solves "
        "within a multiple of the cost of the best method on each problem; for a peer, the better "
        "of its two lines. Peers run on one scaling of every seed, with their recommended settings "
        "and, “tuned”, with the settings of their grid that were best on another problem of the "
        "family over all scalings (results/benchmarks/robust_trials.csv). All methods have "
        f"{BUDGET:g} s of CPU time; our longest run took {longest:.1f} s. If settings of "
        f"{', '.join(ENDLESS[:-1])} or {ENDLESS[-1]} used up this time on that problem in a "
        "scaling, they were not run on the other problems in this scaling and count as time-outs: "
        f"{unrun} rows. pbalm needs functions in JAX and was not run.\n"
    )


def methods(rows: Sequence[Row], task: str) -> list[dict[str, str]]:
    """Medians over the instances for every method that reached the tolerances in its trial."""
    found, lowest = finals(rows, task), at_lowest(rows, task)
    solved = medians([row for row in found if row["status"] == "reached"])
    table = []
    for key, values in (medians(found) | solved).items():
        method, oracle, setting = key
        of = [row for row in found if key_of(row) == key]
        good = [r for r in of if r["status"] == "reached"]
        table.append(
            {
                "method": method,
                "oracle": oracle,
                "settings": setting,
                "reached": f"{len(good)} of {len(of)}",
                "CPU / ours": two(values["cpu_ratio"]),
                "wall / ours": two(values["wall_ratio"]),
                "gradients": _count(values["gradient_calls"]),
                "at the lowest objective": lowest.get(key, MISSING),
                "‖A‖": f"{values['primal']:.0e}",
                "dual": f"{values['dual']:.0e}",
            }
        )
    return table


def failures(rows: Sequence[Row], task: str) -> str:
    """Methods that did not reach the tolerances in the trials, and their best residuals."""
    lines = []
    tried = [row for row in rows if row["task"] == task and row["stage"] == "trial"]
    for method, oracle in dict.fromkeys((row["method"], row["oracle"]) for row in tried):
        of = [row for row in tried if (row["method"], row["oracle"]) == (method, oracle)]
        name = f"{method} ({oracle})" if oracle else method
        if any(row["status"] == "reached" for row in of):
            if of[0]["status"] != "reached":
                lines.append(f"- {name}, with {of[0]['setting']} settings: {of[0]['status']}")
            continue
        measured = [row for row in of if row["primal"]]
        best = min(measured, key=lambda r: max(float(r["primal"]), float(r["dual"])), default=None)
        if best is None:
            lines.append(f"- {name}: {of[0]['status']}")
            continue
        lines.append(
            f"- {name}: {best['status']} ({len(of)} settings); closest with "
            f"“{best['setting']}”: ‖A‖ {best['primal']}, dual {best['dual']}"
        )
    of_task = {row["method"] for row in rows if row["task"] == task}
    absent = dict.fromkeys(row["method"] for row in rows if row["method"] not in of_task)
    if absent:
        lines.append(f"- not run: {', '.join(absent)}")
    return ("Not solved in the trials:\n\n" + "\n".join(lines) + "\n") if lines else ""


def families(robust: Sequence[Row]) -> list[dict[str, str]]:
    """Number of problems solved, by family."""
    table = []
    for method in dict.fromkeys(row["method"] for row in robust):
        line = {"method": method}
        of = [row for row in robust if row["method"] == method]
        for family in (*FAMILIES, "all"):
            rows = [row for row in of if family in (row["family"], "all")]
            line[family] = f"{sum(r['status'] == 'reached' for r in rows)} of {len(rows)}"
        table.append(line)
    return table


def scaling(sizes: Sequence[Row], part: str) -> list[dict[str, str]]:
    """One line for each size, one column for each quantity."""
    of = [row for row in sizes if row["part"] == part]
    table: dict[str, dict[str, str]] = {}
    for row in of:
        line = table.setdefault(row["size"], {SIZES[part]: f"{int(row['size']):,}"})
        line[row["quantity"]] = f"{float(row['value']):,.3g}"
    return list(table.values())


def slopes(sizes: Sequence[Row]) -> str:
    """Exponents of the growth with size."""
    found = []
    grows = [row["quantity"] for row in sizes if "µs" in row["quantity"] or "MB" in row["quantity"]]
    for quantity in dict.fromkeys(grows):
        of = [row for row in sizes if row["quantity"] == quantity]
        points = [float(row["size"]) for row in of], [float(row["value"]) for row in of]
        largest = points[0][-3:], points[1][-3:]
        found.append(f"{quantity} {slope(*points):.2f} (three largest {slope(*largest):.2f})")
    return f"Exponents of the growth: {'; '.join(found)}.\n" if found else ""


def training(overhead: Sequence[Row]) -> list[dict[str, str]]:
    """Ratios by case and method."""
    names = list(dict.fromkeys(row["method"] for row in overhead))
    table = []
    for case in dict.fromkeys(row["case"] for row in overhead):
        found = {r["method"]: r["ratio_to_floor"] for r in overhead if r["case"] == case}
        table.append({"case": case} | {name: found.get(name, MISSING) for name in names})
    return table


def machine(results: Path) -> str:
    """Machine and versions of every benchmark."""
    lines = []
    for name, found in read_machines(results).items():
        machine, versions = found["machine"], found["versions"]
        lines.append(
            f"- {name}: {machine['processor']}, {machine['cores']} cores, one thread; commit "
            f"{str(found['commit'])[:10]}; "
            + (f"features of the {found['images']} images; " if "images" in found else "")
            + ", ".join(f"{package} {version}" for package, version in versions.items())
        )
    return "\n".join(lines) + "\n"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value > 0 else MISSING


def main() -> None:
    """Draw the figures and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--report", type=Path, default=REPORT)
    args = parser.parse_args()
    charts.draw(args.results)
    write_text(args.report, text(args.results))
    print(f"written to {args.report}")


if __name__ == "__main__":
    main()
