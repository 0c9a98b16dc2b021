"""Figures of the benchmarks. They only read CSVs."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from experiments.benchmarks.outcome_table import REFERENCE, Row, read
from experiments.benchmarks.peer_statistics import finals, medians
from experiments.benchmarks.robust import TUNED
from experiments.benchmarks.tasks import plans
from experiments.figures import color

OTHER, GRAYS = "0.55", ("0.35", "0.55", "0.75")  # of peers: colors are reserved for the powers ν
PARTS = ("µs per gradient call", "µs of the product with D", "µs beside the product")
STYLES = ("-", "--", "-.", ":")


def draw(results: Path) -> None:
    """Draw all figures next to the CSVs."""
    deterministic(read(results / "deterministic.csv"), results / "deterministic.png")
    profiles(read(results / "robust.csv"), results / "robust.png")
    scaling(read(results / "scaling.csv"), results / "scaling.png")
    overhead(read(results.parent / "overhead.csv"), results / "overhead.png")


def deterministic(rows: Sequence[Row], path: Path) -> None:
    """Time over ours, one panel for each task; filled for hand-written oracles, else hollow."""
    tasks = [name for name in plans(None) if finals(rows, name)]
    if not tasks:
        return
    solved = [row for row in rows if row["status"] == "reached"]
    found = {task: medians(finals(solved, task)) for task in tasks}
    names = list(dict.fromkeys(key[0] for task in tasks for key in found[task]))[::-1]
    figure, axes = plt.subplots(
        1,
        len(tasks),
        figsize=(3.2 * len(tasks) + 1.5, 0.34 * len(names) + 1.3),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, task in zip(axes[0], tasks, strict=True):
        for (method, oracle, _), values in found[task].items():
            shade = _color(method, OTHER)
            face = shade if oracle == "hand" else "none"
            shift = 0.13 if oracle == "hand" else -0.13
            place = names.index(method) + shift
            axis.plot(values["cpu_ratio"], place, "o", color=shade, markerfacecolor=face)
        low, high = _ratio_axis(axis, f"{task}\nCPU time / {REFERENCE}")
        axis.set_xlim(min(low, 0.09), max(high, 11.0))
    axes[0][0].set_yticks(range(len(names)), names)
    marks = [
        axes[0][-1].plot([], [], "o", color=OTHER, markerfacecolor=face, label=label)[0]
        for face, label in ((OTHER, "hand-written"), ("none", "autograd"))
    ]
    figure.legend(handles=marks, loc="outside upper right", ncols=2, frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def profiles(rows: Sequence[Row], path: Path) -> None:
    """Performance profiles in gradient calls and in CPU time, on problems that all methods ran.

    For a peer with tuned settings the better line is drawn.
    """
    if not rows:
        return
    solved = Counter(row["method"] for row in rows if row["status"] == "reached")
    best: dict[str, str] = {}
    for name in dict.fromkeys(row["method"] for row in rows):
        peer = name.removesuffix(TUNED)
        if peer not in best or solved[name] >= solved[peer]:
            best[peer] = name
    methods = list(best.values())
    problems = shared(rows, methods)
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for axis, column in zip(axes, ("gradient_calls", "cpu"), strict=True):
        _profile(axis, rows, methods, problems, column)
    axes[0].set_xlabel("gradient calls / fewest on the problem")
    axes[1].set_xlabel("CPU time / shortest on the problem")
    axes[0].set_ylabel(f"share of {len(problems)} problems")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)


def shared(rows: Sequence[Row], methods: Sequence[str]) -> list[tuple[str, str, str]]:
    """The problems that all methods ran."""
    seen = [
        {(r["family"], r["scaling"], r["seed"]) for r in rows if r["method"] == method}
        for method in methods
    ]
    return sorted(set.intersection(*seen))


def _profile(
    axis: Axes,
    rows: Sequence[Row],
    methods: Sequence[str],
    problems: Sequence[tuple[str, str, str]],
    column: str,
) -> None:
    costs = np.full((len(methods), len(problems)), np.inf)
    for row in rows:
        key = row["family"], row["scaling"], row["seed"]
        if key in problems and row["method"] in methods and row["status"] == "reached":
            costs[methods.index(row["method"]), problems.index(key)] = float(row[column])
    solved = np.isfinite(costs.min(0))
    ratios = np.where(solved, costs / np.where(solved, costs.min(0), 1.0), np.inf)
    largest = 2 * ratios[np.isfinite(ratios)].max(initial=2.0)
    for i, method in enumerate(methods):
        steps = np.sort(ratios[i][np.isfinite(ratios[i])])
        shares = np.arange(1, len(steps) + 1) / len(problems)
        x, y = [1.0, *steps, largest], [0.0, *shares, shares[-1] if len(shares) else 0.0]
        ours = method.startswith("ours")
        axis.step(
            x,
            y,
            where="post",
            label=method,
            linewidth=2.2 if ours else 1.1,
            linestyle="-" if ours else STYLES[i // len(GRAYS) % len(STYLES)],
            color=_color(method, GRAYS[i % len(GRAYS)]),
        )
    axis.set_xscale("log")
    axis.set_xlim(1.0, largest)
    axis.set_ylim(0.0, 1.02)


def scaling(rows: Sequence[Row], path: Path) -> None:
    """Time and memory by size."""
    if not rows:
        return
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.6), layout="constrained")
    for axis, names in zip(axes[0], (PARTS, ("MB of a solve",)), strict=True):
        for i, name in enumerate(names):
            axis.loglog(*_points(rows, name), marker="osD"[i], color=GRAYS[i], label=name)
        axis.set_xlabel("points n of the clustering, r = 20")
        sizes = _points(rows, names[0])[0]
        axis.set_xticks(sizes, [f"{size:g}" for size in sizes])
        axis.xaxis.set_minor_formatter(NullFormatter())
    for axis, quantity in zip(axes[1], ("µs per step", "MB of a training"), strict=True):
        for i, name in enumerate(("floor", "ours ν = 1", "ours ν = 0.7")):
            points = _points(rows, f"{name}, {quantity}")
            shade, width = _color(name, OTHER), 5 - 2 * i  # keeps coinciding lines visible
            axis.loglog(*points, marker="o", color=shade, linewidth=width, label=name)
        axis.set_xlabel("constraints m of the training")
        axis.set_ylabel(quantity)
    for axis in axes.flat:
        axis.legend(frameon=False)
    axes[0][0].set_ylabel("µs")
    axes[0][1].set_ylabel("MB beside D and x_1")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def overhead(rows: Sequence[Row], path: Path) -> None:
    """Time of a training step over a hand-written one, with quartiles, by case."""
    cases = list(dict.fromkeys(row["case"] for row in rows))
    if not cases:
        return
    names = list(dict.fromkeys(row["method"] for row in rows))[::-1]
    figure, axes = plt.subplots(
        1,
        len(cases),
        figsize=(3.2 * len(cases), 2.9),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, case in zip(axes[0], cases, strict=True):
        for row in rows:
            if row["case"] == case:
                columns = ("first_quartile", "ratio_to_floor", "third_quartile")
                first, middle, third = (float(row[column]) for column in columns)
                place, shade = names.index(row["method"]), _color(row["method"], OTHER)
                axis.plot([first, third], [place, place], color=shade)
                axis.plot(middle, place, "o", color=shade)
        low, high = _ratio_axis(axis, "time of a step / floor")
        ticks = [tick for tick in (0.25, 0.5, 1, 2, 4, 8) if low <= tick <= high]
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_title(case.replace(", ", ",\n", 1), fontsize=9)
    axes[0][0].set_yticks(range(len(names)), names)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _ratio_axis(axis: Axes, label: str) -> tuple[float, float]:
    """Set up a log axis of ratios, one line for each method; return its limits."""
    axis.axvline(1.0, color="0.8", zorder=0)
    axis.set_xscale("log")
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel(label)
    axis.grid(axis="y", color="0.92")
    return axis.get_xlim()


def _color(method: str, other: str) -> str:
    """The color of its ν for ours, else the other one."""
    return color(float(method.split("=")[1])) if method.startswith("ours") else other


def _points(rows: Sequence[Row], quantity: str) -> tuple[list[float], list[float]]:
    of = [row for row in rows if row["quantity"] == quantity]
    return [float(row["size"]) for row in of], [float(row["value"]) for row in of]
