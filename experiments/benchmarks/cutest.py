"""CUTEst: problems that nobody tuned the methods for.

    python -m experiments.benchmarks.cutest [--methods NAME …] [--largest N] [--budget SECONDS]

Every run is a child process that is killed when it has used its CPU time; the point is measured by
cutest_ruler.py.

Rows that are already in the CSV are not computed again. Problems come in an order by lot, and
--most cuts a run in parts. cutest_report.py writes the report.
"""

import argparse
import hashlib
import multiprocessing
import resource
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.atomic_files import read_csv, write_csv
from experiments.benchmarks.cutest_methods import METHODS
from experiments.benchmarks.cutest_problems import Cutest, load_libraries, names
from experiments.benchmarks.cutest_ruler import measure
from experiments.benchmarks.machine import record_machine
from experiments.benchmarks.outcome_table import RESULTS, Row

EPS = 1e-4
TABLE = RESULTS / "cutest.csv.gz"
_UNLOADED = "cannot load: a minute was too short"
GRACE = 3  # seconds of CPU time for loading and measuring, beyond the budget
COLUMNS = (
    *("problem", "n", "m", "method", "solved", "claimed", "status", "primal", "dual"),
    *("objective", "gradient_calls", "cpu", "budget"),
)


def half(name: str) -> int:
    """Which half of the list a problem belongs to, by lot: 0 to choose rules, 1 to report."""
    return hashlib.sha256(name.encode()).digest()[0] % 2


def lot(name: str) -> bytes:
    """Where a problem comes in the order by lot, so that a run that is cut short is a sample."""
    return hashlib.sha256(name.encode()).digest()[1:]


def run(name: str, method: str, budget: float) -> Row:
    """One run in a child process."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(name, method, budget, sender))
    child.start()
    sender.close()
    row: Row = {"problem": name, "method": method, "solved": 0, "claimed": 0, "status": _UNLOADED}
    row["budget"] = f"{budget:g}"
    # The kernel ends the child by its CPU time; this bound is for a child that waits for ever.
    deadline = time.monotonic() + 20 * (budget + GRACE)
    while receiver.poll(max(0.0, deadline - time.monotonic())):
        try:
            row |= receiver.recv()
        except EOFError:
            break
    child.kill()
    child.join()
    return row


def _child(name: str, method: str, budget: float, sender: Any) -> None:
    warnings.simplefilter("ignore")
    _limit(60)
    try:
        cutest = Cutest(name)
    except Exception as error:  # a problem that cannot be built is a row, not an end
        sender.send({"status": f"cannot load: {error!r}"[:80]})
        return
    sender.send({"n": cutest.n, "m": cutest.m, "status": "killed"})
    _limit(budget + GRACE)
    start = time.process_time()
    try:
        claim = METHODS[method](cutest, EPS, budget)
    except Exception as error:
        cpu = time.process_time() - start
        sender.send({"status": f"exception: {error!r}"[:120], "cpu": f"{cpu:.4g}"})
        return
    cpu, calls = time.process_time() - start, cutest.f_calls
    known = {"status": claim.status, "claimed": int(claim.success), "cpu": f"{cpu:.4g}"}
    sender.send(known | {"gradient_calls": calls})
    _limit(60)
    found = measure(cutest, claim.x, claim.y, EPS)
    numbers = {"primal": f"{found.primal:.3e}", "dual": f"{found.dual:.3e}"}
    solved = found.primal <= EPS and found.dual <= EPS
    sender.send(numbers | {"objective": f"{found.objective:.10g}", "solved": int(solved)})


def _limit(seconds: float) -> None:
    """Let the kernel end this process after so many more seconds of CPU time."""
    used = time.process_time()
    resource.setrlimit(resource.RLIMIT_CPU, (int(used + seconds) + 1, resource.RLIM_INFINITY))


def is_false(row: Row) -> bool:
    """Whether the ruler denies a claim of success."""
    return int(row["claimed"]) == 1 and int(row["solved"]) == 0 and bool(row.get("primal"))


def summary(rows: Sequence[Row]) -> str:
    """Solved, false claims and time of every method."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        of = [row for row in rows if row["method"] == method]
        solved = sum(int(row["solved"]) for row in of)
        false = sum(is_false(row) for row in of)
        raised = sum("exception" in row["status"] for row in of)
        killed = sum(row["status"] == "killed" for row in of)
        by_half = [sum(int(r["solved"]) for r in of if half(r["problem"]) == h) for h in (0, 1)]
        lines.append(
            f"{method}: solved {solved} of {len(of)} (halves {by_half}), false claims {false}, "
            f"exceptions {raised}, killed {killed}"
        )
    return "\n".join(lines)


def main() -> None:
    """Run what is missing in the CSV."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--problems", nargs="+", default=None)
    parser.add_argument("--largest", type=int, default=100)
    parser.add_argument("--half", type=int, default=None, choices=(0, 1))
    parser.add_argument("--budget", type=float, default=10.0)
    parser.add_argument("--most", type=int, default=None, help="runs after which this call ends")
    parser.add_argument("--output", type=Path, default=TABLE)
    args = parser.parse_args()
    torch.set_num_threads(1)
    load_libraries()  # once, not in every child
    rows: list[Row] = list(read_csv(args.output)) if args.output.exists() else []
    done = {(row["problem"], row["method"]) for row in rows}
    chosen = [n for n in args.problems or names(args.largest) if args.half in (None, half(n))]
    pairs = [(name, method) for name in sorted(chosen, key=lot) for method in args.methods]
    for name, method in [pair for pair in pairs if pair not in done][: args.most]:
        rows.append(run(name, method, args.budget))
        shown = {k: rows[-1].get(k) for k in ("problem", "method", *COLUMNS[4:])}
        print(*shown.values(), flush=True)
        write_csv(args.output, rows, COLUMNS)
    if args.output.parent == RESULTS:
        record_machine(RESULTS, "cutest")
    print(summary(rows))


if __name__ == "__main__":
    main()
