"""Figures of ConstraintBench: feasible runs by units, and regret by method. They only read runs."""

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from experiments.constraint_bench.bench_numbers import Run, groups, recommended, share, tuned
from experiments.constraint_bench.task import UNITS

DASHES = ("-", "--", "-.", ":")
LARGEST, INFEASIBLE = 1000.0, 3000.0  # percent: end of the axis, and place of infeasible runs


def draw(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Draw both figures for a half of the tasks."""
    paths = [folder / "units.png", folder / "regret.png"]
    by_units(recommended(runs), paths[0])
    regrets(tuned(runs), paths[1])
    return paths


def by_units(runs: Sequence[Run], path: Path) -> None:
    """Share of feasible runs in each unit system, one line for each method as recommended."""
    figure, axis = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    for i, (method, part) in enumerate(groups(runs, lambda run: run["method"]).items()):
        found = groups(part, lambda run: run["units"])
        known = [unit for unit in UNITS if unit in found]
        axis.plot(
            [list(UNITS).index(unit) for unit in known],
            [100 * share(found[unit]) for unit in known],
            color="black" if method == "powalm" else f"C{i % 10}",
            linestyle=DASHES[i % 4],
            linewidth=2.5 if method == "powalm" else 1.2,
            marker="o",
            markersize=4,
            label=method,
        )
    axis.set_xticks(range(len(UNITS)), [name.replace("_", "\n× ") for name in UNITS], fontsize=8)
    axis.set_ylabel("feasible runs, %")
    axis.set_ylim(-3, 103)
    figure.legend(loc="outside right upper", fontsize=8)
    _save(figure, path)


def regrets(runs: Sequence[Run], path: Path) -> None:
    """Regret of each run in natural units, peers tuned in hindsight; infeasible ones at the end."""
    found = groups(runs, lambda run: run["method"])
    figure, axis = plt.subplots(figsize=(7.5, 0.35 * len(found) + 1.2), layout="constrained")
    for i, (method, part) in enumerate(list(found.items())[::-1]):
        color = "black" if method == "powalm" else f"C{i % 10}"
        known = [run for run in part if not math.isnan(run.regret)]
        values = [min(100 * run.regret, LARGEST) if run.feasible else INFEASIBLE for run in known]
        heights = [i + 0.5 * (k / max(len(known) - 1, 1) - 0.5) for k in range(len(known))]
        axis.plot(values, heights, ".", color=color, markersize=4)
    axis.set_yticks(range(len(found)), list(found)[::-1], fontsize=8)
    axis.set_xscale("symlog", linthresh=1)
    axis.set_xlim(-0.1, 1.3 * INFEASIBLE)
    axis.axvspan(1.5 * LARGEST, 1.3 * INFEASIBLE, color="0.93")
    axis.set_xlabel("regret, %; in the gray strip: not feasible")
    _save(figure, path)


def _save(figure: plt.Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)
