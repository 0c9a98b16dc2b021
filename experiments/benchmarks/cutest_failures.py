"""Why ours does not solve a problem: a table from the rows, with causes where they are known."""

from collections.abc import Callable, Sequence

from experiments.benchmarks.cutest_problems import classes
from experiments.benchmarks.outcome_table import Row
from experiments.tables import MISSING, markdown

SLOW = 100  # gradients in the whole time: the oracle, or the model of many unknowns, is slow
FITS = "equations of a fit: their least-squares point is not feasible"
CAUSES = {
    "DECONVC": "the least-squares term is flat along a valley",
    "HS99EXP": "multipliers of 1e6 and rows of very different size",
    "HYDCAR20": "a square system: steps of the model are refused, and differences are expensive",
    "MSS1": "a model of 90 unknowns with negative curvature takes most of the time",
    "PALMER7A": "a flat and curved valley: 30 gradients for a step of its length",
    "S365": "the square root is not defined beyond a plane on which the run ends",
    "TRO3X3": "f is unbounded below along infeasible points; the run is caught at x = 0",
}


def failures(own: Sequence[Row], rows: Sequence[Row], solved: Callable[[Row], bool]) -> str:
    """The problems that ours does not solve, with who does and the cause."""
    lines = []
    for row in sorted(own, key=lambda row: (row["status"], row["problem"])):
        if solved(row):
            continue
        name = row["problem"]
        others = [r["method"] for r in rows if r["problem"] == name and solved(r)]
        lines.append(
            {
                "problem": name,
                "n, m": f"{row['n']}, {row['m']}",
                "status": row["status"],
                "primal": row["primal"],
                "dual": row["dual"],
                "gradients": row["gradient_calls"],
                "solved by": ", ".join(others) or MISSING,
                "cause": cause(row),
            }
        )
    return markdown(lines) if lines else "Nothing.\n"


def cause(row: Row) -> str:
    """What was found by hand, else what the row shows."""
    known = CAUSES.get(row["problem"])
    if known:
        return known
    objective, _ = classes()[row["problem"]]
    few = int(row["gradient_calls"] or 0) < SLOW
    if row["status"] == "infeasible":
        return FITS if objective in "NC" else "a stationary point of the violation"
    if row["status"].startswith("cannot load"):
        return "the problem itself cannot be built"
    if row["status"] == "budget" and few:
        return "time: few gradients of a slow problem"
    if objective in "NC" and int(row["m"] or 0) > int(row["n"] or 0):
        return "more equations than unknowns, slow convergence to their least-squares point"
    return "slow convergence" if row["status"] == "budget" else MISSING
