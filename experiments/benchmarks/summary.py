"""The first table of BENCHMARKS.md: ours over the best peer, one line for each task."""

import statistics
from collections.abc import Sequence

from experiments.benchmarks import charts
from experiments.benchmarks.outcome_table import REFERENCE, Row
from experiments.benchmarks.peer_statistics import at_lowest, best_peer, label, missed, own
from experiments.benchmarks.tasks import plans
from experiments.tables import MISSING

ORACLES = {"hand": "hand-written oracles", "autograd": "autograd"}
Line = dict[str, str]


def summary_lines(
    rows: Sequence[Row], overhead: Sequence[Row], robust: Sequence[Row]
) -> list[Line]:
    """Ratio to the best peer for each task, and whether we are first."""
    found = [_task_line(rows, task, oracle) for task in plans(None) for oracle in ORACLES]
    lines = [line for line in found if line is not None]
    if overhead:
        lines.append(_training_line(overhead))
    if robust:
        lines.append(_robust_line(robust))
    return lines


def two(value: float) -> str:
    """A number with two digits."""
    return f"{value:.2g}" if value == value else MISSING


def _task_line(rows: Sequence[Row], task: str, oracle: str) -> Line | None:
    """The line of a deterministic task; None if ours was not run."""
    peer, mine = best_peer(rows, task, oracle), own(rows, task, oracle)
    line = _line(f"{task}, {ORACLES[oracle]}", MISSING, MISSING, "no peer reached it")
    if failed := missed(rows, task, oracle):
        return line | {"ν = 1 / best peer": failed, "first": "no"}
    if not mine or peer is None:
        return line if mine else None
    name, cost = peer
    nu, least = min(mine.items(), key=lambda item: item[1])
    by_default = mine.get(REFERENCE, float("nan"))
    line = _line(
        line["task"], name, two(by_default / cost), _first(by_default < cost, least < cost)
    )
    line["best ν / best peer"] = f"{two(least / cost)} ({nu.removeprefix('ours ')})"
    hits = {label(key): v for key, v in at_lowest(rows, task).items() if key[1] == oracle}
    line["lowest objective"] = (
        f"ν = 1: {hits[f'{REFERENCE}, defaults']}, {nu.removeprefix('ours ')}: "
        f"{hits[f'{nu}, defaults']}, peer: {hits[name]}"
    )
    return line


def _training_line(overhead: Sequence[Row]) -> Line:
    ratios, names = [], []
    for case in dict.fromkeys(row["case"] for row in overhead):
        found = {r["method"]: float(r["ratio_to_floor"]) for r in overhead if r["case"] == case}
        others = {k: v for k, v in found.items() if k not in ("plain", "floor") and "ours" not in k}
        name = min(others, key=lambda key: others[key])
        names.append(name)
        ratios.append(found["ours nu=1"] / others[name])
    return _line(
        f"training step, {len(ratios)} cases",
        ", ".join(dict.fromkeys(names)),
        f"{two(min(ratios))} to {two(max(ratios))}",
        "yes" if max(ratios) < 1 else "not in all" if min(ratios) < 1 else "no",
    )


def _robust_line(robust: Sequence[Row]) -> Line:
    """Solved problems of those that all methods ran, and the time on those that both solved."""
    methods = list(dict.fromkeys(row["method"] for row in robust))
    problems = charts.shared(robust, methods)
    cpu: dict[str, dict[tuple[str, ...], float]] = {method: {} for method in methods}
    for row in robust:
        problem = row["family"], row["scaling"], row["seed"]
        if problem in problems and row["status"] == "reached":
            cpu[row["method"]][problem] = float(row["cpu"])
    solved = {method: len(times) for method, times in cpu.items()}
    others = {k: v for k, v in solved.items() if not k.startswith("ours")}
    name = max(others, key=lambda key: others[key]) if others else MISSING
    best = others.get(name, 0)
    mine, theirs = cpu[REFERENCE], cpu.get(name, {})
    ratios = [mine[problem] / theirs[problem] for problem in mine.keys() & theirs.keys()]
    time = f", CPU time {two(statistics.median(ratios))}" if ratios else ""
    return _line(
        f"random problems solved, of {len(problems)}",
        f"{name} ({best})",
        f"{solved[REFERENCE]} against {best}{time}",
        {1: "yes", 0: "shared", -1: "no"}[(solved[REFERENCE] > best) - (solved[REFERENCE] < best)],
    )


def _line(task: str, peer: str, by_default: str, first: str) -> Line:
    return {
        "task": task,
        "best peer": peer,
        "ν = 1 / best peer": by_default,
        "best ν / best peer": MISSING,
        "first": first,
        "lowest objective": MISSING,
    }


def _first(by_default: bool, by_best: bool) -> str:
    if by_default:
        return "yes"
    return "with that ν" if by_best else "no"
