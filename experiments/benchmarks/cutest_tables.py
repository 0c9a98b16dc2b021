"""Tables of the comparison on CUTEst problems, from its rows."""

import statistics
from collections.abc import Callable, Sequence

from experiments.benchmarks.cutest import EPS, is_false
from experiments.benchmarks.cutest_problems import classes
from experiments.benchmarks.outcome_table import REFERENCE, Row

BUDGET = 3.0  # seconds of CPU time within which a problem counts as solved
KINDS: dict[str, Callable[[str, str], bool]] = {
    "no objective": lambda f, c: f in "NC",
    "bounds or nothing": lambda f, c: f not in "NC" and c in "UXB",
    "linear constraints": lambda f, c: f not in "NC" and c in "LN",
    "quadratic constraints": lambda f, c: f not in "NC" and c == "Q",
    "general constraints": lambda f, c: f not in "NC" and c == "O",
}


def solved(row: Row) -> bool:
    """Whether the ruler and the clock agree that a run has solved its problem."""
    return row["solved"] == "1" and in_time(row)


def in_time(row: Row) -> bool:
    """Whether a run has ended within the time that counts."""
    return float(row["cpu"] or "inf") <= BUDGET + 0.5


def over_time(row: Row) -> float:
    """Seconds of CPU time beyond those that a run had."""
    return float(row["cpu"] or 0) - float(row["budget"])


def _worst(row: Row) -> float:
    return max(float(row["primal"] or "inf"), float(row["dual"] or "inf"))


def lowest(rows: Sequence[Row]) -> dict[str, float]:
    """The lowest objective of a solved run, of every problem that has an objective."""
    found: dict[str, float] = {}
    kinds = classes()
    for row in rows:
        if solved(row) and kinds[row["problem"]][0] not in "NC":
            value = float(row["objective"])
            found[row["problem"]] = min(value, found.get(row["problem"], value))
    return found


def outcomes(rows: Sequence[Row], best: dict[str, float]) -> list[dict[str, str]]:
    """Counts of every method."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        of = [row for row in rows if row["method"] == method]
        good = [row for row in of if solved(row)]
        false = [row for row in of if is_false(row)]
        at_best = [
            row
            for row in good
            if row["problem"] in best
            and float(row["objective"])
            <= best[row["problem"]] + 1e-3 * max(1.0, abs(best[row["problem"]]))
        ]
        raised = sum(row["status"].startswith("exception") for row in of)
        late = sum(row["status"] == "killed" or over_time(row) > 1 for row in of)
        lines.append(
            {
                "method": method,
                "problems": str(len(of)),
                "solved": str(len(good)),
                "best objective": str(len(at_best)),
                "at 1e-3": str(sum(in_time(r) and _worst(r) <= 10 * EPS for r in of)),
                "false claims": str(len(false)),
                "grossly": str(sum(_worst(row) > 10 * EPS for row in false)),
                "no claim": str(len(of) - len(good) - len(false)),
                "exceptions": str(raised),
                "over time by 1 s": str(late),
            }
        )
    return lines


def ratios(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Medians of ours over a peer, on the problems that both solve."""
    by = {(row["method"], row["problem"]): row for row in rows if solved(row)}
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        both = [
            (by[REFERENCE, name], row)
            for (other, name), row in by.items()
            if other == method != REFERENCE and (REFERENCE, name) in by
        ]
        if both:
            line = {"peer": method, "both solve": str(len(both))}
            for column, name in (("cpu", "CPU time"), ("gradient_calls", "gradients")):
                pairs = [(float(a[column]), max(float(b[column]), 1e-4)) for a, b in both]
                line[name] = f"{statistics.median(a / b for a, b in pairs):.2f}"
            lines.append(line)
    return lines


def kinds(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Solved by kind of problem."""
    found, lines = classes(), []
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for kind, belongs in KINDS.items():
        of = [row for row in rows if belongs(*found[row["problem"]])]
        line = {"kind": kind, "problems": str(len({row["problem"] for row in of}))}
        for method in methods:
            line[method] = str(sum(solved(r) for r in of if r["method"] == method))
        lines.append(line)
    return lines


def profile(rows: Sequence[Row], column: str, factors: Sequence[float]) -> list[dict[str, str]]:
    """Share of the problems solved with at most so many times the least cost of any method."""
    least: dict[str, float] = {}
    problems = {row["problem"] for row in rows}
    for row in filter(solved, rows):
        cost = float(row[column])
        least[row["problem"]] = min(cost, least.get(row["problem"], cost))
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        of = [row for row in rows if row["method"] == method and solved(row)]
        line = {"method": method}
        for factor in factors:
            within = sum(float(row[column]) <= factor * least[row["problem"]] for row in of)
            line[f"≤ {factor:g}"] = f"{within / len(problems):.2f}"
        lines.append(line)
    return lines


def data_profile(rows: Sequence[Row], seconds: Sequence[float]) -> list[dict[str, str]]:
    """Share of the problems solved within so many seconds of CPU time."""
    problems, lines = {row["problem"] for row in rows}, []
    for method in dict.fromkeys(row["method"] for row in rows):
        of = [row for row in rows if row["method"] == method and solved(row)]
        line = {"method": method}
        for limit in seconds:
            line[f"{limit:g} s"] = (
                f"{sum(float(r['cpu']) <= limit for r in of) / len(problems):.2f}"
            )
        lines.append(line)
    return lines


def paired(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Ours and each peer on all problems that both have run."""
    by = {(row["method"], row["problem"]): solved(row) for row in rows}
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        both = [p for m, p in by if m == method != REFERENCE and (REFERENCE, p) in by]
        if both:
            ours, peer = ({p for p in both if by[m, p]} for m in (REFERENCE, method))
            line = {"peer": method, "both ran": str(len(both)), "ours solves": str(len(ours))}
            lines.append(line | {"it solves": str(len(peer)), "only ours": str(len(ours - peer))})
    return lines


def common(rows: Sequence[Row]) -> list[Row]:
    """The problems that all methods have run, without methods that have run far fewer."""
    problems: dict[str, set[str]] = {}
    for row in rows:
        problems.setdefault(row["method"], set()).add(row["problem"])
    most = max((len(p) for m, p in problems.items() if m != REFERENCE), default=0)
    wide = {m for m, p in problems.items() if m == REFERENCE or 3 * len(p) >= 2 * most}
    shared = set.intersection(*(problems[m] for m in wide)) if wide else set()
    return [row for row in rows if row["problem"] in shared and row["method"] in wide]
