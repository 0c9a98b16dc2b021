"""Figures of finished runs beside the paper's numbers. They only read records."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from experiments import paper_numbers as paper
from experiments.atomic_files import replacing
from experiments.cluster_picture import picture
from experiments.clustering_tables import LIMIT
from experiments.run_folder import Run
from experiments.tables import by_iterations, count, with_rule

COLORS = {  # one for each ν, in all figures
    0.1: "#7f7f7f",
    0.2: "#56b4e9",
    0.3: "#bcbd22",
    0.4: "#cc79a7",
    0.5: "#17becf",
    0.6: "#009e73",
    0.65: "#8c564b",
    0.7: "#d55e00",
    0.75: "#e377c2",
    0.8: "#0072b2",
    0.85: "#9467bd",
    0.9: "#e69f00",
    0.95: "#b2182b",
    1.0: "#000000",
}
MARKERS = ("o", "s", "^", "D", "v", "P")  # one for each method
LOOPS = {  # the paper's methods
    "UPFAG": "the paper's double loop",
    "AcceleratedGradient": "the paper's double loop",
    "ProximalPoint": "the paper's triple loop",
}
SIGNS = {  # marker and label of a count that is not one of the paper's rule
    "paper_text": ("^", "ours, step of Algorithm 1"),
    "paper": ("^", "ours, step of Algorithm 1"),
    "paper_all_iterations": ("s", "ours, N iterations each"),
}
WITH_OURS = "paper"  # the rule with our certificate: where there are no others
HOLLOW = {"markerfacecolor": "none", "linestyle": "none", "markersize": 5}


def convergence(runs: Sequence[Run], experiment: str) -> Figure:
    """Violation and suboptimality of the first instance, and the counts by ν.

    For clusterings also the violation by subproblem, and the counts of all instances.
    """
    runs = sorted(_current(runs), key=_nu)
    clusterings = "clusters" in runs[0].run
    all_first = [run for run in runs if run.run["seed"] == 0]
    first = with_rule(all_first, "paper_runs", "paper") or all_first
    drawn = paper.curves(experiment, "violation").keys() & {_nu(run) for run in first}
    panels = 4 if clusterings else 3
    figure, (violation, suboptimality, *by_subproblem, powers) = plt.subplots(
        1, panels, figsize=(4 * panels, 3.6), layout="constrained"
    )
    for run in first:
        if _nu(run) in drawn or not drawn:
            history, start = run.history, run.result["start"]
            x = [0, *_counts(run)]
            style = {"color": color(_nu(run)), "linewidth": 1.2, "marker": ".", "markersize": 4}
            violations = [start["primal_residual"], *history["primal_residual"]]
            violation.semilogy(x, violations, **style)
            for axis in by_subproblem:
                axis.semilogy(violations, **style)
            gaps = [abs(f - minimum(run)) for f in (start["objective"], *history["objective"])]
            suboptimality.semilogy(x, gaps, **style)
    for axis in by_subproblem:
        for run in with_rule(all_first, "paper_all_iterations"):
            violations = [run.result["start"]["primal_residual"], *run.history["primal_residual"]]
            label = f"N iterations each, ν = {_nu(run):g}"
            axis.semilogy(violations, ":", color=color(_nu(run)), linewidth=1.5, label=label)
            axis.legend(frameon=False)
        _papers_subproblems(axis, experiment)
    for axis, panel in ((violation, "violation"), (suboptimality, "suboptimality")):
        for nu, points in paper.curves(experiment, panel).items():
            axis.semilogy(*zip(*points, strict=True), marker="o", color=color(nu), **HOLLOW)
        axis.set_xlim(left=0)
        axis.xaxis.set_major_locator(MaxNLocator(4))
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axis.set_xlabel(unit(runs))
    violation.set_ylabel("‖A(x)‖")
    suboptimality.set_ylabel("|f(x) − f*|")
    _bound_below(suboptimality, 1e-7)
    theirs = paper.curves(experiment, "violation").keys()
    _legend(violation, sorted(theirs | {_nu(run) for run in first if not drawn}), bool(theirs))
    _counts_by_nu(powers, runs if clusterings else all_first, experiment)
    return figure


def clusters(run: Run) -> Figure:
    """The first images of each cluster."""
    pixels = picture(run.tables["clusters"])
    rows = pixels.shape[0] // 28
    figure, axis = plt.subplots(figsize=(6.4, 0.42 * rows + 0.5), layout="constrained")
    axis.imshow(pixels, interpolation="nearest", aspect="equal")
    axis.set_yticks(14 + 28 * np.arange(rows), [str(i) for i in range(rows)])
    axis.set_xticks([])
    axis.set_ylabel("cluster, numbered by its class")
    axis.set_xlabel(
        f"first images of each cluster, red where the class differs; ν = {_nu(run):g}, "
        f"accuracy {run.run['clusters']['accuracy']:.3f}"
    )
    for side in axis.spines.values():
        side.set_visible(False)
    return figure


def beyond(runs: Sequence[Run], references: Sequence[Run]) -> Figure:
    """Gradient calls to the same tolerances by problem and method."""
    cases = sorted({run.config["case"] for run in runs})
    nus, seeds = sorted({_nu(run) for run in runs}), {run.run["seed"] for run in runs}
    chosen = [
        run
        for run in references
        if run.config["case"] in cases and _nu(run) in nus and run.run["seed"] in seeds
    ]
    theirs = {LOOPS[run.config["method"]] for run in chosen}
    labels = [*(label for label in dict.fromkeys(LOOPS.values()) if label in theirs)]
    labels += sorted({run.config["method"] for run in runs})
    figure, axis = plt.subplots(figsize=(9, 4), layout="constrained")
    width = 0.8 / len(labels)
    for run in (*chosen, *runs):
        case, nu, ours = cases.index(run.config["case"]), _nu(run), run.config["rule"] == "ours"
        slot = labels.index(run.config["method"] if ours else LOOPS[run.config["method"]])
        shift = (nus.index(nu) - (len(nus) - 1) / 2) * 0.2 * width
        x = case - 0.4 + width * (slot + 0.5) + shift
        marker = MARKERS[slot] if run.converged else "x"
        axis.semilogy(x, run.result["gradient_calls"], marker, color=color(nu), markersize=4.5)
    axis.set_xticks(range(len(cases)), [case.replace("_", "\n") for case in cases])
    axis.set_ylabel("gradient calls")
    handles = [
        Line2D([], [], marker=marker, color="0.3", linestyle="none", label=label)
        for marker, label in zip(MARKERS, labels, strict=False)
    ]
    handles += [Line2D([], [], marker="x", color="0.3", linestyle="none", label="did not converge")]
    handles += [Line2D([], [], color=color(nu), linewidth=3, label=f"ν = {nu:g}") for nu in nus]
    axis.legend(handles=handles, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def write(path: Path, figure: Figure, *formats: str) -> None:
    """Write a figure as path.png, path.svg and so on."""
    for ending in formats:
        with replacing(path.with_suffix(f".{ending}")) as temporary:
            extra = {"dpi": 120} if ending == "png" else {"metadata": {"Date": None}}
            figure.savefig(temporary, format=ending, **extra)
    plt.close(figure)


def color(nu: float) -> str:
    """The color of ν, gray if it has none."""
    return COLORS.get(nu, "0.6")


def unit(runs: Sequence[Run]) -> str:
    """The unit of `count`."""
    return "iterations of the inner solver" if by_iterations(runs[0]) else "gradient calls"


def minimum(run: Run) -> float:
    """f* if it is known, else f + ⟨y, A⟩ at the end, the local minimum up to second order."""
    known = run.result["f_star"]
    return float(run.result["lagrangian"] if known is None else known)


def _nu(run: Run) -> float:
    return float(run.config["nu"])


def _counts(run: Run) -> list[float]:
    """The count after each outer iteration."""
    if by_iterations(run):
        return list(np.cumsum(run.history["inner_iterations"]))
    return run.history["gradient_calls"]


def _current(runs: Sequence[Run]) -> list[Run]:
    """The runs without those with our certificate, if there are others."""
    others = [run for run in runs if run.config["rule"] != WITH_OURS]
    return others or list(runs)


def _papers_subproblems(axis: Axes, experiment: str) -> None:
    """The paper's violation by subproblem; all of its subproblems take `LIMIT` iterations."""
    for nu, points in paper.curves(experiment, "violation").items():
        count, value = zip(*points, strict=True)
        axis.semilogy([i / LIMIT for i in count], value, marker="o", color=color(nu), **HOLLOW)
    axis.set_xlim(left=0)
    axis.set_xlabel("subproblems")
    axis.set_ylabel("‖A(x)‖")


def _counts_by_nu(axis: Axes, runs: Sequence[Run], experiment: str) -> None:
    for nu, value in paper.counts(experiment).items():
        axis.plot(nu, value, marker="o", color=color(nu), **HOLLOW)
    for run in runs:
        marker = SIGNS.get(run.config["rule"], ("o", ""))[0] if run.converged else "x"
        axis.plot(_nu(run), count(run), marker, color=color(_nu(run)), markersize=5)
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axis.set_xlabel("power ν")
    axis.set_ylabel(unit(runs))
    signs = {"ours": {"marker": "o", "linestyle": "none"}, "the paper's": {"marker": "o", **HOLLOW}}
    for marker, name in dict.fromkeys(filter(None, (SIGNS.get(r.config["rule"]) for r in runs))):
        signs[name] = {"marker": marker, "linestyle": "none"}
    if not all(run.converged for run in runs):
        signs["ours, did not converge"] = {"marker": "x", "linestyle": "none"}
    handles = [Line2D([], [], color="0.3", label=name, **style) for name, style in signs.items()]
    axis.legend(handles=handles, frameon=False)


def _legend(axis: Axes, nus: Sequence[float], with_paper: bool) -> None:
    handles = [Line2D([], [], color=color(nu), label=f"ν = {nu:g}") for nu in nus]
    if with_paper:
        handles.append(Line2D([], [], marker="o", color="0.3", label="the paper's", **HOLLOW))
    axis.legend(handles=handles, frameon=False)


def _bound_below(axis: Axes, bottom: float) -> None:
    axis.set_ylim(bottom=max(axis.get_ylim()[0], bottom))
