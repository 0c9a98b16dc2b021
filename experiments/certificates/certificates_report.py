"""Tables, figure and experiments/CERTIFICATES.md from the results of this folder.

python -m experiments.certificates.certificates_report
"""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.atomic_files import write_text
from experiments.certificates import coverage, held_out_feasibility, trade_off_curve
from experiments.certificates.held_out_feasibility import read

ROOT = Path(__file__).parent.parent
REPORT, FIGURE = ROOT / "CERTIFICATES.md", ROOT / "results" / "figures" / "certificates.png"
METHODS = ("ours, auto", "ours, by hand", "cooper", "penalty", "unconstrained")
Row = dict[str, str]


def interval(wrong: int, trials: int) -> str:
    """A share in percent with its exact 95 % interval."""
    from scipy.stats import binomtest

    limits = binomtest(wrong, trials).proportion_ci(0.95)
    return f"{100 * wrong / trials:.1f} % ({100 * limits.low:.1f}–{100 * limits.high:.1f})"


def coverage_table(rows: Sequence[Row]) -> list[str]:
    """Errors of certificates by data set, and how wide their bounds are."""
    lines = [
        "| data | trainings | verdicts “holds” of 5 | a wrong “holds” | a bound below the truth | "
        "a wrong “holds”, bounds at the truth | width: rate | difference | mean |",
        "|" + " --- |" * 9,
    ]
    for dataset in ("adult", "compas", "both"):
        part = [r for r in rows if dataset in (r["dataset"], "both")]
        if not part:
            continue
        columns = ("wrong", "bounds_below_truth", "least_favorable_wrong")
        shares = [interval(sum(int(r[c]) > 0 for r in part), len(part)) for c in columns]
        holds = statistics.fmean(int(r["holds"]) for r in part)
        names = ("missed_width", "parity_width", "class_loss_width")
        widths = [f"{statistics.median(float(r[c]) for r in part):.2f}" for c in names]
        cells = [dataset, str(len(part)), f"{holds:.1f}", *shares, *widths]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def chosen(rows: Sequence[Row]) -> Row:
    """The setting with the least loss among those that meet the bound on the margin data."""
    return min(rows, key=lambda r: (max(float(r["margin_value"]), 0.0), float(r["margin_loss"])))


def hindsight(rows: Sequence[Row]) -> Row | None:
    """The setting with the least test loss among those that hold and agree with the test data."""
    good = [r for r in rows if r["verdict"] == "holds" and float(r["test_value"]) <= 0]
    return min(good, key=lambda r: float(r["test_loss"]), default=None)


def feasibility_table(rows: Sequence[Row]) -> list[str]:
    """Certificates, test data and losses, by task and method."""
    lines = [
        "| task | method | seeds | certificate holds | test data agree | test loss, median | "
        "value on test data, median |",
        "|" + " --- |" * 7,
    ]
    for task in dict.fromkeys(r["task"] for r in rows):
        for method in METHODS:
            part = [r for r in rows if (r["task"], r["method"]) == (task, method)]
            if not part:
                continue
            by_seed = [[r for r in part if r["seed"] == s] for s in _seeds(part)]
            ends = [chosen(group) for group in by_seed]
            holds = [r for r in ends if r["verdict"] == "holds"]
            agree = sum(float(r["test_value"]) <= 0 for r in holds)
            loss, value = (
                statistics.median(float(r[c]) for r in ends) for c in ("test_loss", "test_value")
            )
            numbers = [str(len(ends)), f"{len(holds)} of {len(ends)}", f"{agree} of {len(holds)}"]
            cells = [task, method, *numbers, f"{loss:.4f}", f"{value:+.4f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def costs(rows: Sequence[Row]) -> list[str]:
    """Loss of margin="auto" relative to our margin by hand that is best in hindsight."""
    lines = []
    for task in dict.fromkeys(r["task"] for r in rows):
        ratios = []
        for seed in _seeds([r for r in rows if r["task"] == task]):
            mine = [r for r in rows if (r["task"], r["seed"]) == (task, seed)]
            best = hindsight([r for r in mine if r["method"] == "ours, by hand"])
            auto = [r for r in mine if r["method"] == "ours, auto"]
            if best is not None and auto:
                ratios.append(float(auto[0]["test_loss"]) / float(best["test_loss"]) - 1)
        if ratios:
            found = f"{100 * statistics.median(ratios):+.1f} %"
            lines.append(f"- {task}: {found} in the median of {len(ratios)} seeds")
    return lines


def trade_off_table(rows: Sequence[Row]) -> list[str]:
    """The points of the curve."""
    names = ("bound", "loss", "certified", "holds", "price", "slope")
    titles = ("bound", "test loss", "certified", "holds", "multiplier", "slope to the next")
    lines = [f"| {' | '.join(titles)} |", "|" + " --- |" * len(names)]
    for row in rows:
        cells = [row[n] if n == "holds" else f"{float(row[n]):.4f}" for n in names]
        lines.append(f"| {' | '.join(cells)} |".replace("nan", "–"))
    return lines


def draw(rows: Sequence[Row], curve: Sequence[Row], path: Path) -> None:
    """Value on test data against test loss of each seed, and the curve.

    A black ring marks a certificate that does not hold.
    """
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(r["task"] for r in rows))
    figure = Figure(figsize=(3.4 * (len(tasks) + bool(curve)), 3.6), layout="constrained")
    panels = figure.subplots(1, len(tasks) + bool(curve), squeeze=False)[0]
    for axes, task in zip(panels, tasks, strict=False):
        for method, marker, color in zip(METHODS, "o^sDx", _COLORS, strict=True):
            part = [r for r in rows if (r["task"], r["method"]) == (task, method)]
            ends = [chosen([r for r in part if r["seed"] == s]) for s in _seeds(part)]
            x, y = ([float(r[c]) for r in ends] for c in ("test_value", "test_loss"))
            axes.scatter(x, y, marker=marker, color=color, label=method if ends else None, s=28)
            failed = [r for r in ends if r["verdict"] != "holds"]
            x, y = ([float(r[c]) for r in failed] for c in ("test_value", "test_loss"))
            axes.scatter(x, y, marker="o", facecolors="none", edgecolors="black", s=110)
        axes.axvline(0.0, color="black", linewidth=0.8)
        axes.set_title(task, fontsize="medium")
        axes.set_xlabel("value on test data (met: ≤ 0)")
        axes.set_ylabel("test loss")
    if curve:
        axes = panels[-1]
        losses = [float(r["loss"]) for r in curve]
        axes.plot([float(r["bound"]) for r in curve], losses, "o-", label="asked for")
        axes.plot([float(r["certified"]) for r in curve], losses, "s--", label="certified")
        axes.set_title("compas_missed: trade-off", fontsize="medium")
        axes.set_xlabel("share of missed positives")
        axes.set_ylabel("test loss")
        axes.legend(frameon=False, fontsize="small")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(METHODS), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


_COLORS = ("tab:blue", "tab:cyan", "tab:orange", "tab:red", "gray")


def _seeds(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(r["seed"] for r in rows))


def text(covered: Sequence[Row], trained: Sequence[Row], curve: Sequence[Row]) -> str:
    """The report."""
    template = (Path(__file__).parent / "report_template.md").read_text()
    parts: dict[str, Callable[[], list[str]]] = {
        "COVERAGE": lambda: coverage_table(covered),
        "FEASIBILITY": lambda: feasibility_table(trained),
        "COSTS": lambda: costs(trained),
        "TRADE_OFF": lambda: trade_off_table(curve),
    }
    for name, lines in parts.items():
        template = template.replace(f"{{{name}}}", "\n".join(lines()))
    return template


def main() -> None:
    """Write figure and report."""
    tables: list[Any] = [read(m.KEPT) for m in (coverage, held_out_feasibility, trade_off_curve)]
    draw(tables[1], tables[2], FIGURE)
    write_text(REPORT, text(*tables))


if __name__ == "__main__":
    main()
