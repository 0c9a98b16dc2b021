"""Counts and objectives of many random instances beside the counts of the paper's table."""

from collections.abc import Sequence

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from experiments import paper_numbers as paper
from experiments.figures import HOLLOW, color, unit
from experiments.run_folder import Run
from experiments.tables import count

ENOUGH = 30  # values for a violin; fewer are dots alone


def figure(runs: Sequence[Run], experiment: str) -> Figure:
    """Counts and objectives of our instances by ν, and the counts of the paper's, all linear."""
    runs = [run for run in runs if run.config["rule"] != "paper_text"]
    figure, (counts, papers, objectives) = plt.subplots(
        1, 3, figsize=(12, 3.6), layout="constrained"
    )
    nus = sorted({float(run.config["nu"]) for run in runs})
    labels = []
    for i, nu in enumerate(nus):
        of_nu = [run for run in runs if run.config["nu"] == nu]
        good = [run for run in of_nu if run.converged]
        _violin(counts, i, [count(run) for run in good], color(nu))
        _violin(objectives, i, [float(run.result["objective"]) for run in good], color(nu))
        theirs = paper.trials(experiment).get(nu, [])
        papers.plot(_apart(i, theirs), theirs, marker="o", color=color(nu), **HOLLOW)
        failed = f"\n{len(of_nu) - len(good)} failed" if len(good) < len(of_nu) else ""
        labels.append(f"{nu:g}\n{len(of_nu)} runs{failed}")
    for axis in (counts, objectives):
        axis.set_xticks(range(len(nus)), labels)
    papers.set_xticks(range(len(nus)), [f"{nu:g}" for nu in nus])
    for axis in (counts, papers, objectives):
        axis.set_xlim(-0.6, len(nus) - 0.4)
        axis.set_xlabel("ν")
        axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    for axis, whose in ((counts, "ours"), (papers, "the paper's table")):
        axis.set_ylim(bottom=0)
        axis.set_ylabel(f"{unit(runs).removesuffix(' of the inner solver')}, {whose}")
    objectives.set_ylabel("objective at the end, ours")
    return figure


def _violin(axis: Axes, x: int, values: Sequence[float], shade: str) -> None:
    if len(values) >= ENOUGH and len(set(values)) > 1:
        parts = axis.violinplot(values, [x], widths=0.8, showextrema=False, showmedians=True)
        for body in parts["bodies"]:
            body.set_facecolor(shade)
            body.set_alpha(0.35)
        parts["cmedians"].set_color(shade)
    axis.plot(_apart(x, values), values, ".", color=shade, markersize=3)


def _apart(x: int, values: Sequence[float]) -> list[float]:
    """Places near x, one for each value."""
    return list(x + np.linspace(-0.12, 0.12, len(values)))
