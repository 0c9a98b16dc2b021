"""Why ours does not solve a problem: a table from the rows, with causes where they are known."""

from collections.abc import Callable, Sequence

from experiments.benchmarks.cutest_problems import classes
from experiments.benchmarks.outcome_table import Row
from experiments.tables import MISSING, markdown

SLOW = 0.01  # seconds for a gradient, most of which is the oracle's
FITS = "equations whose least-squares point is not feasible"
CAUSES = {
    "PALMER7A": "a flat and curved valley: many short steps",
    "S365": "ends at a plane beyond which the gradient is not defined",
    "S365MOD": "a minimum of the violation; from one random point in four a feasible one is found",
    "SNAKE": "the first penalty is too weak: x runs far away along f",
    "HS99EXP": "f falls without end along infeasible points",
    "HYDCAR20": "a curved valley: many short steps",
    "YATP1CNE": "a curved valley: many short steps",
    "TRO3X3": "f falls without end along infeasible points; the run is caught at x = 0",
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
    if row["solved"] == "1":
        return "solved, but late"
    objective, _ = classes()[row["problem"]]
    if row["status"] == "infeasible":
        return FITS if objective in "NC" else "a stationary point of the violation"
    if row["status"] == "stalled" and objective in "NC":
        return "searches from several points end with different violations"
    if row["status"].startswith("cannot load"):
        return "the problem itself cannot be built"
    gradients, cpu = int(row["gradient_calls"] or 0), float(row["cpu"] or 0)
    if row["status"] == "budget" and cpu > SLOW * gradients:
        return f"time: {1e3 * cpu / max(1, gradients):.0f} ms for a gradient"
    if objective in "NC" and int(row["m"] or 0) > int(row["n"] or 0):
        return "slow convergence to a least-squares point"
    return "slow convergence" if row["status"] == "budget" else MISSING
