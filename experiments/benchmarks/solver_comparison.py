"""Comparison with peers on deterministic problems: GEVP, nonconvex QPs, clustering of features.

    python -m experiments.benchmarks.solver_comparison [--tasks NAME …] [--root FOLDER]

One process, one thread. Trials: every setting of every peer on the first instance of a task.
Finals: the recommended settings and the best of the grid on all instances, if they reached the
tolerances in the trial; short runs are repeated in rounds of rotating order. Ours runs with its
defaults, which were chosen on other instances. A ratio is the median over rounds of (method / ours
with ν = 1 and the same kind of oracle in that round); a run of more than a second is made once.
Writes deterministic.csv, where new rows replace older ones.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from experiments.atomic_files import write_csv
from experiments.benchmarks import peers
from experiments.benchmarks.machine import record_machine
from experiments.benchmarks.outcome_table import (
    COLUMNS,
    REFERENCE,
    RESULTS,
    Row,
    numbers,
    ratios,
    read,
    row_of,
)
from experiments.benchmarks.peers import ours
from experiments.benchmarks.tasks import STAGES, Plan, plans
from experiments.benchmarks.timed_run import Outcome, Solve, Task, run, warm_up
from experiments.counting_bar import track
from experiments.data.images import Source

LONG = 1.0  # seconds; longer runs are neither warmed up nor repeated


@dataclass
class Entry:
    """A method with one setting and one kind of oracle, and its runs on an instance."""

    method: str
    solve: Solve
    setting: str
    arguments: Mapping[str, Any]
    oracle: str
    outcomes: list[Outcome] = field(default_factory=list)

    def run(self, task: Task, budget: float) -> Outcome:
        """One run."""
        return run(self.solve, task, budget, autograd=self.oracle == "autograd", **self.arguments)


def trials(plan: Plan, names: Iterable[str] = peers.PEERS) -> list[Row]:
    """Every setting of every peer on the first instance.

    Args:
        plan: of the task.
        names: of the peers.
    """
    first, rows = plan.instances(0), []
    for name in names:
        module = peers.load(name)
        if isinstance(module, str):
            rows.append(row_of(first, name, "", "", "trial") | {"status": module})
            continue
        for entry in _entries(module, plan.oracles):
            rows += _try(_grid(entry, module), first, plan.trial)
    return rows


def finals(plan: Plan, tried: Sequence[Row], names: Iterable[str] = peers.PEERS) -> list[Row]:
    """Ours and the settings that reached the tolerances in the trials, on all instances.

    Args:
        plan: of the task.
        tried: rows of all trials so far.
        names: of the peers.
    """
    task, entries = plan.instances(0).name, _entries(ours, plan.oracles)
    for name in names:
        module = peers.load(name)
        if isinstance(module, str):
            continue
        for entry in _entries(module, plan.oracles):
            found = [row for row in tried if _belongs(row, entry, task)]
            entries += _chosen(_grid(entry, module), found)
    rows = []
    for seed in range(plan.seeds):
        rows += interleave(entries, plan.instances(seed), plan.rounds, plan.budget)
    return rows


def _belongs(row: Row, entry: Entry, task: str) -> bool:
    known = (row["task"], row["method"], row["oracle"], row["stage"], row["status"])
    return known == (task, entry.method, entry.oracle, "trial", "reached")


def _entries(module: Any, oracles: Sequence[str]) -> list[Entry]:
    """One entry for each method and kind of oracle, with the recommended settings."""
    return [
        Entry(method, module.solve, *next(iter(settings.items())), oracle)
        for method, settings in module.METHODS.items()
        for oracle in module.ORACLES
        if oracle in oracles or len(module.ORACLES) == 1
    ]


def _grid(entry: Entry, module: Any) -> list[Entry]:
    settings = module.METHODS[entry.method].items()
    return [Entry(entry.method, entry.solve, *pair, entry.oracle) for pair in settings]


def _try(grid: Sequence[Entry], task: Task, budget: float) -> list[Row]:
    rows = []
    for entry in track(grid, f"{task.name}: settings of {grid[0].method}"):
        outcome = entry.run(task, budget)
        if outcome.reached and outcome.wall < LONG:
            outcome = entry.run(task, budget)
        row = row_of(task, entry.method, entry.oracle, entry.setting, "trial")
        rows.append(row | numbers([outcome]))
    return rows


def _chosen(grid: Sequence[Entry], reached: Sequence[Row]) -> list[Entry]:
    """The recommended settings and the best of the grid, if they reached the tolerances."""
    if not reached:
        return []
    best = min(reached, key=lambda row: float(row["cpu"]))["setting"]
    recommended = {row["setting"] for row in reached} & {grid[0].setting}
    return [entry for entry in grid if entry.setting in recommended | {best}]


def interleave(entries: Sequence[Entry], task: Task, rounds: int, budget: float) -> list[Row]:
    """Run in rounds of rotating order; long runs are made once."""
    for entry in entries:
        entry.outcomes = []
    for k in track(range(rounds + 1), f"{task.name}, instance {task.seed}"):
        shift = k % len(entries)
        for entry in [*entries[shift:], *entries[:shift]]:
            if not entry.outcomes or entry.outcomes[0].wall < LONG:
                entry.outcomes.append(entry.run(task, budget))
    for entry in entries:
        if len(entry.outcomes) > 1:
            del entry.outcomes[0]  # the warm-up
    references = {e.oracle: e.outcomes for e in entries if e.method == REFERENCE}
    rows = []
    for entry in entries:
        row = row_of(task, entry.method, entry.oracle, entry.setting, "final")
        rows.append(
            row | numbers(entry.outcomes) | ratios(entry.outcomes, references.get(entry.oracle))
        )
    return rows


def main() -> None:
    """Run the tasks and write the CSV after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=list(plans(None)), choices=plans(None))
    parser.add_argument("--stages", nargs="+", default=STAGES, choices=STAGES)
    parser.add_argument("--peers", nargs="+", default=list(peers.PEERS), choices=peers.PEERS)
    parser.add_argument("--seeds", type=int, help="number of instances of each task")
    parser.add_argument("--root", help="folder of the complete images; else the sample")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warm_up()
    path = args.output / "deterministic.csv"
    for name in args.tasks:
        for stage in args.stages:
            again = _methods(args.peers) | (set() if stage == "trial" else set(ours.METHODS))
            kept = [
                row
                for row in read(path)
                if (row["task"], row["stage"]) != (name, stage) or row["method"] not in again
            ]
            plan = plans(args.root)[name]
            plan = plan._replace(seeds=args.seeds or plan.seeds)
            if stage == "trial":
                rows = trials(plan, args.peers)
            else:
                rows = finals(plan, kept, args.peers)
            write_csv(path, sorted([*kept, *rows], key=_order), COLUMNS)
            name_of_stage = "deterministic_trials" if stage == "trial" else "deterministic"
            images = Source("mnist", args.root).part
            record_machine(args.output, name_of_stage, images=images)
            reached = sum(row["status"] == "reached" for row in rows)
            print(f"{name}, {stage}: {reached} of {len(rows)} reached", flush=True)


def _methods(names: Iterable[str]) -> set[str]:
    """The methods of peers, and the names of peers that are not installed."""
    found = set(names)
    for name in names:
        module = peers.load(name)
        if not isinstance(module, str):
            found |= set(module.METHODS)
    return found


def _order(row: Row) -> tuple[int, bool, int]:
    """Sort by task and stage, ours first, then in the order of the peers."""
    methods = list(ours.METHODS)
    for name in peers.PEERS:
        module = peers.load(name)
        methods += [name] if isinstance(module, str) else module.METHODS
    place = methods.index(row["method"]) if row["method"] in methods else len(methods)
    return list(plans(None)).index(row["task"]), row["stage"] == "final", place


if __name__ == "__main__":
    main()
