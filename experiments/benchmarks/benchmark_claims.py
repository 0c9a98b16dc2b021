"""Claims about the benchmarks, each checked against their CSVs."""

from collections import Counter
from collections.abc import Mapping, Sequence

from experiments import paper_numbers as paper
from experiments.benchmarks.outcome_table import REFERENCE, Row
from experiments.benchmarks.peer_statistics import (
    best_peer,
    finals,
    key_of,
    label,
    medians,
    missed,
    own,
)
from experiments.benchmarks.scaling import slope

GEVP, QP, SMALL, LARGE = "GEVP n=500", "QP n=100", "clustering n=200", "clustering n=1000"


def answers(
    rows: Sequence[Row], robust: Sequence[Row], sizes: Sequence[Row]
) -> list[dict[str, str]]:
    """One line for each claim: the claim, whether it holds, the evidence."""
    table = [_large(rows)]
    table += [_by_hand(rows, task) for task in (GEVP, QP, SMALL)]
    table += [_by_autograd(rows, task) for task in (GEVP, QP, SMALL)]
    table += [_others(rows, task) for task in (GEVP, QP, SMALL, LARGE)]
    goals = ((GEVP, "gevp", 10), (LARGE, "clustering_mnist", 10), (QP, "qp_double", 5))
    table += [_gradients(rows, *goal) for goal in goals]
    return table + _robust(robust) + _growth(sizes)


def _line(what: str, holds: bool | None, numbers: str) -> dict[str, str]:
    words = {True: "yes", False: "no", None: "not measured"}
    return {"claim": what, "holds": words[holds], "evidence": numbers}


def _ratios(mine: Mapping[str, float], cost: float) -> str:
    return ", ".join(
        f"{name.removeprefix('ours ')}: {value / cost:.2g}" for name, value in mine.items()
    )


def _large(rows: Sequence[Row]) -> dict[str, str]:
    what = f"{LARGE}: faster than alpaqa's best for ν = 1 and one ν < 1, same objective to 1e-4"
    peer, mine = best_peer(rows, LARGE, "hand", "alpaqa"), own(rows, LARGE, "hand")
    if failed := missed(rows, LARGE, "hand"):
        return _line(what, False, failed)
    if peer is None or not mine:
        return _line(what, None, "")
    name, cost = peer
    values = {
        key[0]: v["objective"]
        for key, v in medians(finals(rows, LARGE)).items()
        if key[1] == "hand" and label(key) in (name, f"{key[0]}, defaults")
    }
    theirs = values[name.split(",")[0]]
    fast = {key for key, value in mine.items() if value < cost}
    same = {key for key in mine if abs(values[key] - theirs) <= 1e-4 * abs(theirs)}
    good = fast & same
    objectives = ", ".join(f"{key.removeprefix('ours ')} {values[key]:.5g}" for key in mine)
    numbers = f"ours / {name} — {_ratios(mine, cost)}; objectives {objectives}, alpaqa {theirs:.5g}"
    return _line(what, REFERENCE in good and len(good) > 1, numbers)


def _by_hand(rows: Sequence[Row], task: str) -> dict[str, str]:
    what = f"{task}: at most 3 times alpaqa, hand-written oracles"
    peer, mine = best_peer(rows, task, "hand", "alpaqa"), own(rows, task, "hand")
    if failed := missed(rows, task, "hand"):
        return _line(what, False, failed)
    if peer is None or REFERENCE not in mine:
        return _line(what, None, "")
    numbers = f"ours / {peer[0]} — {_ratios(mine, peer[1])}"
    return _line(what, mine[REFERENCE] <= 3 * peer[1], numbers)


def _by_autograd(rows: Sequence[Row], task: str) -> dict[str, str]:
    what = f"{task}: faster than alpaqa, autograd"
    peer, mine = best_peer(rows, task, "autograd", "alpaqa"), own(rows, task, "autograd")
    if failed := missed(rows, task, "autograd"):
        return _line(what, False, failed)
    if peer is None or REFERENCE not in mine:
        return _line(what, None, "")
    numbers = f"ours / {peer[0]} — {_ratios(mine, peer[1])}"
    return _line(what, mine[REFERENCE] < peer[1], numbers)


def _others(rows: Sequence[Row], task: str) -> dict[str, str]:
    """Compare peers with ours by the same kind of oracle, hand-written or autograd.

    A peer is ahead if it is faster on the instances that it solves, however few these are.
    """
    what = f"{task}: ahead of every other Python peer"
    if not finals(rows, task):
        return _line(what, None, "")
    if failed := missed(rows, task, "hand") or missed(rows, task, "autograd"):
        return _line(what, False, failed)
    tried = [row for row in rows if row["task"] == task and row["stage"] == "trial"]
    ran = {row["method"] for row in tried if not row["status"].startswith(("not inst", "cannot"))}
    if not any(not name.startswith("alpaqa") for name in ran):
        return _line(what, None, "no other peer was run")
    others = [row for row in finals(rows, task) if not row["method"].startswith(("ours", "alpaqa"))]
    solved = [row for row in others if row["status"] == "reached"]
    runs = Counter(map(key_of, others))
    good = Counter(map(key_of, solved))
    ratios = {key: values["cpu_ratio"] for key, values in medians(solved).items()}
    numbers = "; ".join(
        f"{label(key)} ({key[1]}): {ratio:.2g} times ours, {good[key]} of {runs[key]} solved"
        for key, ratio in ratios.items()
    )
    ahead = not any(ratio <= 1 for ratio in ratios.values())
    return _line(what, ahead, numbers or "no other reached it")


def _gradients(rows: Sequence[Row], task: str, experiment: str, times: int) -> dict[str, str]:
    what = f"{task}: {times} times fewer gradients than the paper's best"
    mine = own(rows, task, "hand", "gradient_calls")
    best = min(paper.counts(experiment).values())
    if failed := missed(rows, task, "hand"):
        return _line(what, False, failed)
    if REFERENCE not in mine:
        return _line(what, None, f"the paper's best {best:,.0f}")
    counts = ", ".join(f"{k.removeprefix('ours ')}: {v:,.0f}" for k, v in mine.items())
    return _line(
        what, times * mine[REFERENCE] <= best, f"the paper's best {best:,.0f}; ours {counts}"
    )


def _robust(robust: Sequence[Row]) -> list[dict[str, str]]:
    lines = []
    for method in dict.fromkeys(row["method"] for row in robust if row["own_status"]):
        of = [row for row in robust if row["method"] == method]
        good = sum(row["own_status"] == "converged" and row["status"] == "reached" for row in of)
        bad = sum(row["own_status"] in ("exception", "not_finite", "budget") for row in of)
        claims = sum(row["own_status"] == "converged" for row in of) - good
        what = (
            f"{method}: solves at least 95 % of the random problems without nan, exception or hang"
        )
        numbers = f"{good} of {len(of)}; {bad} such ends; {claims} wrong claims of convergence"
        lines.append(_line(what, good >= 0.95 * len(of) and not bad, numbers))
    return lines


def _growth(sizes: Sequence[Row]) -> list[dict[str, str]]:
    lines = []
    beside = [row for row in sizes if row["quantity"] == "µs beside the product"]
    if beside:
        p = slope([float(r["size"]) for r in beside], [float(r["value"]) for r in beside])
        lines.append(
            _line("cost other than the product is linear in n", p <= 1.1, f"exponent {p:.2f}")
        )
    last = [row for row in sizes if row["size"] == "1000000" and row["quantity"].startswith("ours")]
    ratios = {row["quantity"]: float(row["value"]) for row in last if "floor" in row["quantity"]}
    if ratios:
        numbers = ", ".join(f"{name} {value:.3g}" for name, value in ratios.items())
        what = "a step with a million constraints takes at most 1.05 times the floor"
        lines.append(_line(what, max(ratios.values()) <= 1.05, numbers))
    return lines
