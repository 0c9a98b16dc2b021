"""Statistics of the comparison of solvers: medians, best peers, lowest objectives."""

from collections import Counter
from collections.abc import Sequence
from statistics import median

from experiments.benchmarks.outcome_table import REFERENCE, Row

Key = tuple[str, str, str]  # method, oracle, settings


def key_of(row: Row) -> Key:
    """Method, oracle and settings of a row."""
    return row["method"], row["oracle"], row["setting"]


def label(key: Key) -> str:
    """A method with its settings, as in the tables."""
    return f"{key[0]}, {key[2]}"


def finals(rows: Sequence[Row], task: str) -> list[Row]:
    """The rows of the final stage of a task."""
    return [row for row in rows if row["task"] == task and row["stage"] == "final"]


def medians(rows: Sequence[Row]) -> dict[Key, dict[str, float]]:
    """Medians over the instances by method, oracle and settings."""
    found: dict[Key, dict[str, float]] = {}
    for row in rows:
        key = key_of(row)
        if key in found:
            continue
        of = [r for r in rows if key_of(r) == key]
        found[key] = {}
        for name in ("cpu_ratio", "wall_ratio", "gradient_calls", "primal", "dual", "objective"):
            values = [float(r[name]) for r in of if r[name] not in ("", None)]
            found[key][name] = median(values) if values else float("nan")
    return found


def own(rows: Sequence[Row], task: str, oracle: str, name: str = "cpu_ratio") -> dict[str, float]:
    """Our medians by ν, for those that reached the tolerances on every instance."""
    return {
        key[0]: values[name]
        for key, values in _complete(finals(rows, task)).items()
        if key[0].startswith("ours") and key[1] == oracle
    }


def best_peer(
    rows: Sequence[Row], task: str, oracle: str, of: str = ""
) -> tuple[str, float] | None:
    """The fastest of the peers that solved the most instances, with its ratio to ours.

    The ratio is the median over the instances that the peer solved.

    Args:
        rows: of deterministic.csv.
        task: its name.
        oracle: "hand" or "autograd".
        of: prefix of the names of the peers to consider.
    """
    solved = [
        row
        for row in finals(rows, task)
        if (row["oracle"], row["status"]) == (oracle, "reached")
        and row["method"].startswith(of)
        and not row["method"].startswith("ours")
    ]
    counts = Counter(map(key_of, solved))
    found = {
        label(key): values["cpu_ratio"]
        for key, values in medians(solved).items()
        if counts[key] == max(counts.values())
    }
    return min(found.items(), key=lambda item: item[1]) if found else None


def at_lowest(rows: Sequence[Row], task: str) -> dict[Key, str]:
    """Number of instances on which a method reached the lowest objective of all methods."""
    good = [row for row in finals(rows, task) if row["status"] == "reached"]
    lowest: dict[str, float] = {}
    for row in good:
        value = float(row["objective"])
        lowest[row["seed"]] = min(value, lowest.get(row["seed"], value))
    hits: Counter[Key] = Counter()
    runs: Counter[Key] = Counter()
    for row in good:
        key = key_of(row)
        least = lowest[row["seed"]]
        runs[key] += 1
        hits[key] += abs(float(row["objective"]) - least) <= 1e-3 * max(1.0, abs(least))
    return {key: f"{hits[key]} of {runs[key]}" for key in runs}


def missed(rows: Sequence[Row], task: str, oracle: str) -> str:
    """How many instances ours with ν = 1 solved; empty if it solved all."""
    known = REFERENCE, oracle
    of = [row for row in finals(rows, task) if (row["method"], row["oracle"]) == known]
    good = sum(row["status"] == "reached" for row in of)
    return "" if good == len(of) else f"{REFERENCE} solved {good} of {len(of)}"


def _complete(rows: Sequence[Row]) -> dict[Key, dict[str, float]]:
    incomplete = {key_of(row) for row in rows if row["status"] != "reached"}
    return {key: value for key, value in medians(rows).items() if key not in incomplete}
