"""Tables, figure and report of constrained trainings. Nothing is trained here.

    python -m experiments.training_report FOLDER [--output FOLDER/gathered]
    python -m experiments.training_report RESULTS --report FILE

FOLDER has run folders of `experiments.train` at any depth, or tidy tables of them (RESULTS). If it
has training_cost.csv, written by `experiments.benchmarks.training_cost`, the tables show the cost
of a step. --report writes the report and, in RESULTS/figures, its figure.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments import figures, gather, run_tables, tables
from experiments.atomic_files import read_csv, write_text
from experiments.run_folder import Run

EXPERIMENTS = {
    "neyman_pearson": "Neyman–Pearson classification: at most 5 % of the shirts missed",
    "orthonormal": "Orthonormal rows in the last layer",
}
BASELINES = {  # methods without a power ν, and their colors
    "unconstrained": "0.6",
    "penalty": "#cc79a7",
    "cooper": "#009e73",
    "nothing set": "#e6a800",
}
ALL = 8 * 3  # runs of an experiment: methods times seeds
FLOOR = 1e-4  # smallest violation on a logarithmic axis
NOTES = Path(__file__).parent / "notes"
HEAD = """# Constrained training: our method and the alternatives

`python -m experiments.training_report experiments/results --report experiments/TRAINING.md` writes
this report from the tables of runs and histories in [results](results). `make train` makes the runs
(DATA=FOLDER uses a local copy of the images).

A seed fixes weights, split and order of the images for all methods. If a method has settings to
choose, all candidates are trained, and the report shows the one with the smallest validation loss
among those that are feasible on validation data (the least infeasible one if none is). Test data
are never used to choose. Numbers are medians over the seeds, with the range, for the network after
the last epoch. A violation is max(B, 0) or the largest |A|, computed from the strict values on all
images of the split. The cost of a step is its ratio to an unconstrained step; steps of all methods
alternate in one process.
"""


def main() -> None:
    """Read the runs, then tabulate them or write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="run folders or tidy tables")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--output", type=Path, help="folder of tables and figure")
    what.add_argument("--report", type=Path, help="file of the report")
    args = parser.parse_args()
    try:
        runs = [run for run in run_tables.read(args.folder) if run.config["name"] in EXPERIMENTS]
    except (ValueError, OSError) as error:
        gather.fail(str(error))
    if not runs:
        gather.fail(f"{args.folder} has no finished training")
    costs = read_costs(args.folder / "training_cost.csv")
    if args.report:
        folder = args.folder / "figures"
        figures.write(folder / "training", figure(runs), "png")
        seen = Path(os.path.relpath(folder, args.report.parent))
        write_text(args.report, text(runs, costs, seen))
        print(f"report in {args.report}, figure in {folder}")
        return
    output = args.output or args.folder / "gathered"
    for name, made in run_tables.by_experiment(runs):
        rows = table(made, costs)
        gather.show(name, rows)
        tables.write(output / "tables" / f"training_{name}", rows)
    figures.write(output / "figures" / "training", figure(runs), "png", "svg")
    print(f"tables in {output / 'tables'}, figure in {output / 'figures'}")


def read_costs(path: Path) -> dict[tuple[str, str], str]:
    """Ratio of a step to an unconstrained one, by experiment and method; empty without a file."""
    rows = read_csv(path) if path.exists() else []
    return {(row["experiment"], row["method"]): row["ratio"] for row in rows}


def table(runs: Sequence[Run], costs: dict[tuple[str, str], str]) -> list[tables.Row]:
    """One row for each method of an experiment: medians over the seeds, with the range."""
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
    """Violation by epoch, and test loss against violation at the end, for each experiment."""
    names = [name for name in EXPERIMENTS if any(run.config["name"] == name for run in runs)]
    picture, axes = plt.subplots(
        len(names), 2, figsize=(10, 3.6 * len(names)), layout="constrained", squeeze=False
    )
    for (curves, ends), name in zip(axes, names, strict=True):
        made = [run for run in runs if run.config["name"] == name]
        for label in labels(made):
            of_label = [run for run in made if run.config["label"] == label]
            style: dict[str, Any] = {"color": _color(label), "label": _title(label)}
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
    """The whole report; `folder` is the folder of the figure relative to it."""
    parts = [HEAD, f"![training]({folder / 'training'}.png)\n"]
    for name, title in EXPERIMENTS.items():
        parts.append(f"## {title}\n\n{_commands(name)}\n")
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
    """The methods: the alternatives first, then ours by ν."""
    found = {run.config["label"] for run in runs}
    return [b for b in BASELINES if b in found] + sorted(found - BASELINES.keys())


def _commands(experiment: str) -> str:
    command = f"python -m experiments.train -m experiment={experiment}"
    others = "unconstrained,penalty,cooper,nothing_set"
    return f"`{command} method.nu=0.5,0.7,0.8,1.0; {command} method={others}`"


def _setting(runs: Sequence[Run]) -> str:
    config = runs[0].config
    schedule, images = config["schedule"], config["images"]
    versions = runs[0].run["versions"]
    commits = sorted({str(run.run["commit"])[:10] for run in runs})
    seeds = ", ".join(map(str, sorted({run.run["seed"] for run in runs})))
    return (
        f"{images['dataset']} ({images['part']}), {schedule.get('n') or 'all'} training images, a "
        f"tenth of them for validation; {schedule['epochs']} epochs with batches of "
        f"{schedule['batch_size']}, Adam with a cosine schedule from 1e-3 to 0, seeds {seeds}. "
        f"torch {versions['torch']}, lightning {versions['lightning']}, "
        f"commit {', '.join(commits)}.\n"
    )


def _chosen(runs: Sequence[Run]) -> str:
    """The settings chosen on validation data, for each seed."""
    lines = ["Settings chosen on validation data, for each seed:\n"]
    for label in labels(runs):
        settings = [
            f"{candidate['settings']} (of {len(run.tables['candidates'])})"
            for run in runs
            if run.config["label"] == label
            for candidate in run.tables.get("candidates", [])
            if candidate["chosen"] == "True"
        ]
        if settings:
            lines.append(f"- {_title(label)}: {'; '.join(settings)}")
    return "\n".join([*lines, ""])


def _feasible(runs: Sequence[Run], part: str) -> str:
    """Number of seeds that end with a violation within the tolerance."""
    feasible = [run.result[f"{part}_violation"] <= run.config["task"]["tolerance"] for run in runs]
    return f"{sum(feasible)} of {len(feasible)}"


def _epochs(reached: Sequence[float], runs: int) -> str:
    if not reached:
        return "never"
    missing = f", never in {runs - len(reached)}" if len(reached) < runs else ""
    return f"{tables.spread(reached)}{missing}"


def _title(label: str) -> str:
    return "ours, nothing set" if label == "nothing set" else label.replace("nu=", "ν = ")


def _color(label: str) -> str:
    return BASELINES.get(label) or figures.color(float(label.removeprefix("nu=")))


def _spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.4f}"
    return f"{median(values):.4f} ({min(values):.4f}–{max(values):.4f})"


if __name__ == "__main__":
    main()
