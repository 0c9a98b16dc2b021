"""Table, figure and report of constrained trainings. Reads records and runs nothing.

    python -m experiments.train_report FOLDER [--output FOLDER/gathered] [--report FILE]

FOLDER holds the run folders of `experiments.train` at any depth; cost.csv beside them, as
`experiments.benchmarks.training_cost` writes it, adds the cost of a step.
"""

import argparse
import csv
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments import figures, gather, records, tables
from experiments.records import Run

EXPERIMENTS = {
    "neyman_pearson": "Neyman–Pearson classification: at most 5 % of the shirts missed",
    "orthonormal": "Orthonormal rows in the last layer",
}
BASELINES = {"unconstrained": "0.6", "penalty": "#cc79a7", "cooper": "#009e73"}  # colours
ALL = 7 * 3  # runs of an experiment: methods times seeds
FLOOR = 1e-4  # of a violation on a logarithmic axis
NOTES = Path(__file__).parent / "results" / "notes"
HEAD = """# Constrained training: ours beside what one would do instead

Written by `python -m experiments.train_report experiments/results/training --output
experiments/results --report experiments/TRAINING.md` from the records in
[results/training](results/training); `make train` makes the records (DATA=FOLDER for a local copy
of the images).

A seed fixes weights, split and order for all methods. Where a method has settings to choose, all
candidates are trained and the one with the least validation loss among those that are feasible on
validation data is reported (the least infeasible, where none is); test data choose nothing. Medians
over the seeds with the range; the network is that of the last epoch. A violation is max(B, 0) or
the largest |A|, of the strict values on all images of the part. The cost of a step is its ratio to
an unconstrained one, measured in turns in one process.
"""


def main() -> None:
    """Read, write, say where."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path, help="for tables and figures")
    parser.add_argument("--report", type=Path, help="file for the report")
    args = parser.parse_args()
    runs = [run for run in records.read(args.folder) if run.config["name"] in EXPERIMENTS]
    if not runs:
        print(f"error: {args.folder} holds no finished training", file=sys.stderr)
        sys.exit(2)
    costs = read_costs(args.folder / "cost.csv")
    output = args.output or args.folder / "gathered"
    for name in ("tables", "figures"):
        (output / name).mkdir(parents=True, exist_ok=True)
    for name in sorted({run.config["name"] for run in runs}):
        rows = table([run for run in runs if run.config["name"] == name], costs)
        gather.show(name, rows)
        tables.write(output / "tables" / f"training_{name}", rows)
    figures.write(output / "figures" / "training", figure(runs))
    print(f"tables in {output / 'tables'}, figure in {output / 'figures'}")
    if args.report:
        seen = Path(os.path.relpath(output / "figures", args.report.parent))
        args.report.write_text(text(runs, costs, seen))
        print(f"report in {args.report}")


def read_costs(path: Path) -> dict[tuple[str, str], str]:
    """Ratio of a step to an unconstrained one, by experiment and method; empty without a file."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {(row["experiment"], row["method"]): row["ratio"] for row in csv.DictReader(file)}


def table(runs: Sequence[Run], costs: dict[tuple[str, str], str]) -> list[tables.Row]:
    """One row for each method of an experiment: medians over the seeds with the range."""
    rows = []
    for label in labels(runs):
        made = [run for run in runs if run.config["label"] == label]
        reached = [after for run in made if (after := run.result["feasible_after"]) is not None]
        rows.append(
            {
                "method": _title(label),
                "test loss": _spread([run.result["test_loss"] for run in made]),
                "violation, training": _spread([run.result["train_violation"] for run in made]),
                "violation, test": _spread([run.result["test_violation"] for run in made]),
                "feasible, training": _feasible(made, "train"),
                "feasible, test": _feasible(made, "test"),
                "epochs until feasible": _epochs(reached, len(made)),
                "test accuracy": _spread([run.result["test_accuracy"] for run in made]),
                "cost of a step": costs.get((made[0].config["name"], label), tables.MISSING),
            }
        )
    return rows


def figure(runs: Sequence[Run]) -> Figure:
    """Violation over epochs, and test loss against violation at the end, for each experiment."""
    names = [name for name in EXPERIMENTS if any(run.config["name"] == name for run in runs)]
    picture, axes = plt.subplots(
        len(names), 2, figsize=(10, 3.6 * len(names)), layout="constrained", squeeze=False
    )
    for (curves, ends), name in zip(axes, names, strict=True):
        made = [run for run in runs if run.config["name"] == name]
        for label in labels(made):
            of_label = [run for run in made if run.config["label"] == label]
            style: dict[str, Any] = {"color": _colour(label), "label": _title(label)}
            columns = zip(*(run.history["train_violation"] for run in of_label), strict=True)
            middle = [max(median(column), FLOOR) for column in columns]
            curves.semilogy(range(1, len(middle) + 1), middle, linewidth=1.3, **style)
            x = [max(run.result["test_violation"], FLOOR) for run in of_label]
            ends.semilogx(x, [run.result["test_loss"] for run in of_label], "o", **style)
        for draw in (curves.axhline, ends.axvline):
            draw(made[0].config["task"]["tolerance"], color="0.8", linewidth=0.8, zorder=0)
        curves.set_xlabel("epoch")
        curves.xaxis.set_major_locator(MaxNLocator(integer=True))
        curves.set_ylabel(f"{name.replace('_', '–')}\nviolation on training data")
        ends.set_xlabel("violation on test data")
        ends.set_ylabel("test loss")
        ends.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return picture


def text(runs: Sequence[Run], costs: dict[tuple[str, str], str], folder: Path) -> str:
    """The whole report; folder holds the figure, as seen from the report."""
    parts = [HEAD, f"![training]({folder / 'training'}.png)\n"]
    for name, title in EXPERIMENTS.items():
        parts.append(f"## {title}\n\n`python -m experiments.train -m experiment={name}`\n")
        made = [run for run in runs if run.config["name"] == name]
        if not made:
            parts.append("Not run.\n")
            continue
        parts += [_setting(made), tables.markdown(table(made, costs)), _chosen(made)]
        if len(made) < ALL:
            parts.append(f"{len(made)} of {ALL} runs are finished.\n")
        notes = NOTES / f"training_{name}.md"
        if notes.exists():
            parts.append(notes.read_text())
    return "\n".join(parts)


def labels(runs: Sequence[Run]) -> list[str]:
    """The methods: the others first, then ours by ν."""
    found = {run.config["label"] for run in runs}
    return [b for b in BASELINES if b in found] + sorted(found - BASELINES.keys())


def _setting(runs: Sequence[Run]) -> str:
    config = runs[0].config
    schedule, images = config["schedule"], config["images"]
    versions = runs[0].run["versions"]
    commits = sorted({str(run.run["commit"])[:10] for run in runs})
    seeds = ", ".join(map(str, sorted({run.run["seed"] for run in runs})))
    return (
        f"{images['dataset']} ({images['part']}), {schedule.get('n') or 'all'} training images, a "
        f"tenth of them for validation; {schedule['epochs']} epochs of batches of "
        f"{schedule['batch_size']}, Adam with a cosine from 1e-3 to 0, seeds {seeds}. "
        f"torch {versions['torch']}, lightning {versions['lightning']}, "
        f"commit {', '.join(commits)}.\n"
    )


def _chosen(runs: Sequence[Run]) -> str:
    """What each method chose on validation data, seed by seed."""
    lines = ["Chosen on validation data, seed by seed:\n"]
    for label in labels(runs):
        settings = [
            f"{candidate['settings']} (of {len(run.run['candidates'])})"
            for run in runs
            if run.config["label"] == label
            for candidate in run.run.get("candidates", [])
            if candidate["chosen"]
        ]
        if settings:
            lines.append(f"- {_title(label)}: {'; '.join(settings)}")
    return "\n".join([*lines, ""])


def _feasible(runs: Sequence[Run], part: str) -> str:
    """On how many seeds the violation is within tolerance at the end."""
    feasible = [run.result[f"{part}_violation"] <= run.config["task"]["tolerance"] for run in runs]
    return f"{sum(feasible)} of {len(feasible)}"


def _epochs(reached: Sequence[float], runs: int) -> str:
    if not reached:
        return "never"
    missing = f", never in {runs - len(reached)}" if len(reached) < runs else ""
    return f"{tables.spread(reached)}{missing}"


def _title(label: str) -> str:
    return label.replace("nu=", "ν = ")


def _colour(label: str) -> str:
    return BASELINES.get(label) or figures.colour(float(label.removeprefix("nu=")))


def _spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.4f}"
    return f"{median(values):.4f} ({min(values):.4f}–{max(values):.4f})"


if __name__ == "__main__":
    main()
