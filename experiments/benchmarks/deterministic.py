"""Deterministic problems side by side: GEVP, nonconvex QPs, clustering of real features.

    python -m experiments.benchmarks.deterministic [--tasks NAME …] [--root FOLDER]

One process, one thread. Trials: every setting of every peer on the first instance of a task.
Finals: the recommended settings and the best of the grid, where they reached the tolerances, on all
instances, in rounds that rotate the order where runs are short; of slow ones the trial stands. On
the clustering with n = 1000 the settings are those that were best with n = 200. Ours runs with its
defaults, which were chosen on other instances than these. A ratio is the median over rounds of
(method / ours with ν = 1 and the same kind of oracle in that round). Writes deterministic.csv, rows
of what was run in place of older ones.
"""

import argparse
import csv
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments import features
from experiments.benchmarks import peers
from experiments.benchmarks.machine import write_machine
from experiments.benchmarks.peers import ours
from experiments.benchmarks.ruler import Outcome, Solve, Task, run
from experiments.data.images import Source
from experiments.problems import deterministic
from experiments.progress import track
from torch_powalm import Problem

RESULTS = Path(__file__).parent.parent / "results" / "benchmarks"
REFERENCE = "ours ν = 1"
SMALL = "clustering n=200"
START = 5.36e-4  # of the clustering with n = 1000: ‖A(x_1)‖ as in the paper
FIRST = 100  # seed of the first instance: the defaults of power_alm were chosen with seeds below
STAGES = ("trial", "final")
LONG = 1.0  # seconds from which a run is neither warmed up nor repeated
COLUMNS = (
    *("task", "seed", "method", "oracle", "setting", "stage", "status", "primal", "dual"),
    *("multiplier", "objective", "function_calls", "gradient_calls", "wall", "cpu"),
    *("wall_ratio", "cpu_ratio", "rounds"),
)
Row = dict[str, Any]


class Plan(NamedTuple):
    """How a task is run.

    Args:
        instances: builds the task of a number, from 0 on.
        seeds: how many.
        rounds: of short runs.
        budget: seconds of a run.
        trial: seconds of a run of the grid.
        slow: seconds from which a trial is not run again, but stands for the final.
        settings: the task whose trials choose the settings, instead of its own.
        oracles: the kinds that methods with both of them run with.
    """

    instances: Callable[[int], Task]
    seeds: int
    rounds: int
    budget: float
    trial: float
    slow: float
    settings: str = ""
    oracles: tuple[str, ...] = ("hand", "autograd")


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


def gevp(seed: int, n: int = 500) -> Task:
    """Minimise ½ xᵀCx on the sphere."""
    problem, x_1 = deterministic.gevp(seed, n)
    Q = problem.oracle.f_by_hand.Q

    def plain() -> Problem:
        return Problem(lambda x: 0.5 * (x @ (Q @ x)), equality=lambda x: (x @ x - 1).reshape(1))

    return Task(f"GEVP n={n}", seed, x_1, 1e-3, plain, lambda: deterministic.gevp(seed, n)[0])


def qp(seed: int, n: int = 100, m: int = 20) -> Task:
    """Nonconvex QP."""
    problem, x_1 = deterministic.qp(seed, n, m)
    f, c = problem.oracle.f_by_hand, problem.oracle.blocks[0][1]

    def plain() -> Problem:
        return Problem(
            lambda x: 0.5 * (x @ (f.Q @ x)) + f.q @ x,
            equality=lambda x: c.C @ x - c.b,
            g=problem.g,
        )

    by_hand = deterministic.qp(seed, n, m)[0]
    return Task(f"QP n={n}", seed, x_1, 1e-3, plain, lambda: _again(by_hand))


def clustering(seed: int, points: Tensor, scale: float, r: int = 20, s: int = 10) -> Task:
    """Clustering of points."""
    problem, x_1 = deterministic.clustering(points, seed, r, s, scale)
    D = problem.oracle.f_by_hand.doubled / 2

    def plain() -> Problem:
        return Problem(
            lambda X: (X * (D @ X)).sum(), equality=lambda X: X @ X.sum(0) - 1, g=problem.g
        )

    name = f"clustering n={len(points)}"
    return Task(name, seed, x_1, 1e-4, plain, lambda: _again(problem))


def _again(problem: Problem) -> Problem:
    """The same problem with counters of its own."""
    constraint = problem.oracle.constraints["equality"]
    return Problem(problem.oracle.f_by_hand, equality=constraint, g=problem.g)


def probabilities(root: str | None, cache: str = "outputs/features") -> Tensor:
    """Real features: the class probabilities of 1,000 test images of MNIST."""
    found = features.extract(
        Source("mnist", root), features.Training(), cache, n=1000, seed=0, progress=False
    )
    return torch.from_numpy(found.outputs).softmax(1)


def plans(root: str | None) -> dict[str, Plan]:
    """The tasks by name."""
    points: list[Tensor] = []

    def images() -> Tensor:
        if not points:
            points.append(probabilities(root))
        return points[0]

    def small(k: int) -> Task:
        """Other images in every instance, and none of the first 200."""
        return clustering(FIRST + k, images()[200 * (k + 1) : 200 * (k + 2)], 1e-3)

    def large(k: int) -> Task:
        return clustering(FIRST + k, images(), START)

    return {
        "GEVP n=500": Plan(lambda k: gevp(FIRST + k), 3, 5, 30.0, 6.0, 1.0),
        "QP n=100": Plan(lambda k: qp(FIRST + k), 10, 1, 30.0, 10.0, 3.0),
        SMALL: Plan(small, 4, 1, 30.0, 10.0, 3.0),
        "clustering n=1000": Plan(large, 3, 1, 120.0, 40.0, 120.0, SMALL, ("hand",)),
    }


def trials(
    plan: Plan, previous: Sequence[Row] = (), names: Iterable[str] = peers.PEERS
) -> list[Row]:
    """Every setting of every peer on the first instance.

    Where another task chooses the settings: the recommended ones of what failed there, once more.

    Args:
        plan: of the task.
        previous: rows of the other tasks.
        names: of the peers.
    """
    first, rows = plan.instances(0), []
    for name in names:
        module = peers.load(name)
        if isinstance(module, str):
            rows.append(_row(first, name, "", "", "trial") | {"status": module})
            continue
        for entry in _entries(module, plan.oracles):
            if plan.settings:
                if not any(_belongs(row, entry, plan.settings) for row in previous):
                    rows += _try([entry], first, plan.trial)
            else:
                rows += _try(_grid(entry, module), first, plan.trial)
    return rows


def finals(plan: Plan, tried: Sequence[Row], names: Iterable[str] = peers.PEERS) -> list[Row]:
    """Ours and what reached the tolerances in the trials, on all instances.

    Args:
        plan: of the task.
        tried: rows of all trials so far.
        names: of the peers.
    """
    source = plan.settings or plan.instances(0).name
    entries, slow = _entries(ours, plan.oracles), []
    for name in names:
        module = peers.load(name)
        if isinstance(module, str):
            continue
        for entry in _entries(module, plan.oracles):
            found = [row for row in tried if _belongs(row, entry, source)]
            for chosen in _chosen(_grid(entry, module), found):
                trial = next(row for row in found if row["setting"] == chosen.setting)
                if float(trial["cpu"]) > plan.slow:
                    slow.append(trial)
                else:
                    entries.append(chosen)
    rows = []
    for seed in range(plan.seeds):
        rows += interleave(entries, plan.instances(seed), plan.rounds, plan.budget)
    return rows + [_once(row, rows) for row in slow]


def _once(trial: Row, rows: Sequence[Row]) -> Row:
    """A trial that stands for a final, with its ratio to ours on the same instance."""
    known = REFERENCE, trial["oracle"], str(trial["seed"])
    for row in rows:
        if (row["method"], row["oracle"], str(row["seed"])) == known:
            ratios = {
                f"{clock}_ratio": f"{float(trial[clock]) / float(row[clock]):.3g}"
                for clock in ("wall", "cpu")
            }
            return trial | ratios | {"stage": "final"}
    return trial | {"stage": "final"}


def _belongs(row: Row, entry: Entry, task: str) -> bool:
    known = (row["task"], row["method"], row["oracle"], row["stage"], row["status"])
    return known == (task, entry.method, entry.oracle, "trial", "reached")


def _entries(module: Any, oracles: Sequence[str]) -> list[Entry]:
    """One for each method and kind of oracle, with the recommended settings."""
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
        row = _row(task, entry.method, entry.oracle, entry.setting, "trial")
        rows.append(row | _numbers([outcome]))
    return rows


def _chosen(grid: Sequence[Entry], reached: Sequence[Row]) -> list[Entry]:
    """The recommended settings and the best of the grid, as far as they reached the tolerances."""
    if not reached:
        return []
    best = min(reached, key=lambda row: float(row["cpu"]))["setting"]
    recommended = {row["setting"] for row in reached} & {grid[0].setting}
    return [entry for entry in grid if entry.setting in recommended | {best}]


def interleave(entries: Sequence[Entry], task: Task, rounds: int, budget: float) -> list[Row]:
    """Rounds in rotating order; runs that are not short are made once."""
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
        row = _row(task, entry.method, entry.oracle, entry.setting, "final")
        rows.append(row | _numbers(entry.outcomes) | _ratios(entry, references.get(entry.oracle)))
    return rows


def _row(task: Task, method: str, oracle: str, setting: str, stage: str) -> Row:
    row = dict.fromkeys(COLUMNS, "")
    known = {"task": task.name, "seed": task.seed, "method": method, "oracle": oracle}
    return row | known | {"setting": setting, "stage": stage}


def _numbers(outcomes: Sequence[Outcome]) -> Row:
    last = outcomes[-1]
    found: Row = {"status": last.status, "rounds": len(outcomes)}
    if last.status.startswith("cannot"):
        return found
    if last.measured is not None:
        found |= {
            "primal": f"{last.measured.primal:.3e}",
            "dual": f"{last.measured.dual:.3e}",
            "objective": f"{last.measured.objective:.10g}",
            "multiplier": last.measured.multiplier,
        }
    return found | {
        "function_calls": last.function_calls or "",  # not countable where it is 0
        "gradient_calls": last.gradient_calls or "",
        "wall": f"{statistics.median(o.wall for o in outcomes):.4g}",
        "cpu": f"{statistics.median(o.cpu for o in outcomes):.4g}",
    }


def _ratios(entry: Entry, reference: Sequence[Outcome] | None) -> Row:
    if reference is None or entry.outcomes[-1].wall == 0:
        return {}
    found = {}
    for clock in ("wall", "cpu"):
        mine = [getattr(o, clock) for o in entry.outcomes]
        other = [getattr(o, clock) for o in reference]
        if len(mine) == len(other):
            value = statistics.median(a / b for a, b in zip(mine, other, strict=True))
        else:
            value = statistics.median(mine) / statistics.median(other)
        found[f"{clock}_ratio"] = f"{value:.3g}"
    return found


def read(path: Path) -> list[Row]:
    """The rows of a CSV, none where there is none."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: Sequence[Row], columns: Sequence[str] = COLUMNS) -> None:
    """A CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def warm_up() -> None:
    """Have torch import what its optimizers import at their first step: seconds."""
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([x])
    x.sum().backward()
    optimizer.step()
    torch.optim.lr_scheduler.StepLR(optimizer, 1).step()


def main() -> None:
    """Run the tasks and write the CSV after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=list(plans(None)), choices=plans(None))
    parser.add_argument("--stages", nargs="+", default=STAGES, choices=STAGES)
    parser.add_argument("--peers", nargs="+", default=list(peers.PEERS), choices=peers.PEERS)
    parser.add_argument("--seeds", type=int, help="instances of each task; else its own number")
    parser.add_argument("--root", help="folder of the complete images; else the carried sample")
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
                rows = trials(plan, kept, args.peers)
            else:
                rows = finals(plan, kept, args.peers)
            write(path, sorted([*kept, *rows], key=_order))
            write_machine(
                args.output / "deterministic.json", images=Source("mnist", args.root).part
            )
            reached = sum(row["status"] == "reached" for row in rows)
            print(f"{name}, {stage}: {reached} of {len(rows)} reached", flush=True)


def _methods(names: Iterable[str]) -> set[str]:
    """The methods of peers, and the names of those that are not installed."""
    found = set(names)
    for name in names:
        module = peers.load(name)
        if not isinstance(module, str):
            found |= set(module.METHODS)
    return found


def _order(row: Row) -> tuple[int, bool]:
    return list(plans(None)).index(row["task"]), row["stage"] == "final"


if __name__ == "__main__":
    main()
