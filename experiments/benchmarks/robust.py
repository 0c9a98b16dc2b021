"""Share of random problems that are solved: five families in three scalings.

    python -m experiments.benchmarks.robust [--families NAME …] [--peers NAME …] [--stages …]

families.py has the problems; tolerances are 1e-4, and the seeds were not used to choose defaults.
Ours runs with its defaults on all problems. Peers run on one scaling of each of their seeds, with
their recommended settings and with the settings of their grid that solved another problem of the
family in the most scalings, and fastest; if none did, with the recommended ones only. All methods
have the same CPU time. PyGRANSO, cooper, humancompatible-train and mdmm run until the ruler or the
clock stops them; if their settings use up the time on that other problem in a scaling, they are not
run on the problems in this scaling and count as time-outs. pbalm needs functions in JAX and is not
run. Writes robust.csv and, for the grids, robust_trials.csv, where new rows replace older ones.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.atomic_files import write_csv
from experiments.benchmarks import peers
from experiments.benchmarks.families import FAMILIES, SCALINGS, task
from experiments.benchmarks.machine import record_machine
from experiments.benchmarks.outcome_table import RESULTS, Row, numbers, read
from experiments.benchmarks.ruler import Answer
from experiments.benchmarks.tasks import FIRST, STAGES
from experiments.benchmarks.timed_run import Outcome, RunClock, Solve, Task, run, warm_up
from experiments.counting_bar import track
from torch_powalm import Problem, Solution, power_alm

NUS = (1.0, 0.8)
NAMES = ("alpaqa", "cyipopt", "scipy", "pygranso", "cooper", "humancompatible", "mdmm")
BUDGET = 10.0  # seconds of CPU time
TUNED = ", tuned"
TRIALS = "robust_trials"  # name of the file
ENDLESS = (
    "PyGRANSO",
    "cooper",
    "humancompatible-train",
    "mdmm",
)  # stopped by the ruler or the clock
UNRUN = "time-out of its trial"
COLUMNS = (
    *("family", "scaling", "seed", "method", "setting", "status", "own_status", "primal", "dual"),
    *("objective", "function_calls", "gradient_calls", "wall", "cpu"),
)


class Peer(NamedTuple):
    """A method of a peer with its settings, the recommended ones first."""

    method: str
    solve: Solve
    settings: dict[str, dict[str, Any]]

    @property
    def recommended(self) -> str:
        """The first settings."""
        return next(iter(self.settings))

    def run(self, found: Task, setting: str, budget: float) -> Row:
        """A run with one of the settings."""
        outcome = run(self.solve, found, budget, autograd=True, **self.settings[setting])
        return {"method": self.method, "setting": setting} | numbers([outcome])


def installed(names: Iterable[str]) -> list[Peer]:
    """The methods of the peers that are installed."""
    modules = [module for name in names if not isinstance(module := peers.load(name), str)]
    return [Peer(k, module.solve, v) for module in modules for k, v in module.METHODS.items()]


def trials(family: str, methods: Sequence[Peer], budget: float = BUDGET) -> list[Row]:
    """Try the settings of the methods on a problem of the family that is not compared.

    All settings run on the unscaled problem; the recommended ones and those that solved it also run
    in the other scalings.
    """
    rows: list[Row] = []
    for peer in track(methods, f"{family}: settings"):
        settings = list(peer.settings)
        for scaling in SCALINGS:
            found = task(family, FIRST - 1, scaling)
            row = {"family": family, "scaling": scaling, "seed": found.seed}
            tried = [row | peer.run(found, setting, budget) for setting in settings]
            solved = [r["setting"] for r in tried if r["status"] == "reached"]
            rows += tried
            if scaling == next(iter(SCALINGS)):
                settings = [s for s in settings if s == peer.recommended or s in solved]
    return rows


def compare(
    family: str,
    seeds: int,
    peer_seeds: int,
    tried: Sequence[Row],
    methods: Sequence[Peer],
    nus: Iterable[float] = NUS,
    budget: float = BUDGET,
) -> list[Row]:
    """Run ours on all problems, and the peers on one scaling of each of their seeds."""
    cases = [(scaling, seed) for scaling in SCALINGS for seed in range(FIRST, FIRST + seeds)]
    rows = []
    for scaling, seed in track(cases, f"{family}: random problems"):
        found = task(family, seed, scaling)
        row = {"family": family, "scaling": scaling, "seed": seed}
        for nu in nus:
            outcome, status = ours(found, nu, budget)
            known = {"method": f"ours ν = {nu:g}", "setting": "defaults", "own_status": status}
            rows.append(row | known | numbers([outcome]))
        if seed - FIRST >= peer_seeds or scaling != list(SCALINGS)[seed % len(SCALINGS)]:
            continue
        for peer in methods:
            first, best = peer.recommended, best_setting(peer, tried)
            found_first = _final(peer, found, scaling, first, tried, budget)
            rows.append(row | found_first)
            if len(peer.settings) > 1:
                same = best == first
                tuned = found_first if same else _final(peer, found, scaling, best, tried, budget)
                rows.append(row | tuned | {"method": peer.method + TUNED})
    return rows


def best_setting(peer: Peer, tried: Sequence[Row]) -> str:
    """The settings that solved the trial in the most scalings, and fastest; else the first."""
    of = [row for row in tried if (row["method"], row["status"]) == (peer.method, "reached")]

    def cost(setting: str) -> tuple[int, float]:
        times = [float(row["cpu"]) for row in of if row["setting"] == setting]
        return -len(times), sum(times)

    return min(peer.settings, key=cost)


def _final(
    peer: Peer, found: Task, scaling: str, setting: str, tried: Sequence[Row], budget: float
) -> Row:
    """A run, or a time-out if the method is endless and timed out in the trial of the scaling."""
    key = peer.method, setting, scaling, "time-out"
    known = {(r["method"], r["setting"], r["scaling"], r["status"]) for r in tried}
    if peer.method in ENDLESS and key in known:
        return {"method": peer.method, "setting": setting, "status": UNRUN}
    return peer.run(found, setting, budget)


def ours(found: Task, nu: float, budget: float = BUDGET) -> tuple[Outcome, str]:
    """A run of ours with defaults, and the status that it returns."""
    claimed: list[Solution] = []

    def solve(problem: Problem, x_1: Tensor, eps: float, clock: RunClock) -> Answer:
        claimed.append(
            power_alm(problem, x_1, nu=nu, eps_phi=eps, eps_A=eps, max_seconds=clock.left)
        )
        return Answer(claimed[0].x, claimed[0].y)

    outcome = run(solve, found, budget, autograd=True)
    return outcome, claimed[0].status.value if claimed else "exception"


def main() -> None:
    """Run all and write the CSVs after each family."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--peer-seeds", type=int, default=10)
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--peers", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--stages", nargs="+", default=STAGES, choices=STAGES)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warm_up()
    ours(task("sphere", 0, "as it is"), 1.0)
    methods = installed(args.peers)
    for family in args.families:
        if "trial" in args.stages:
            _keep(args.output, TRIALS, family, trials(family, methods))
        if "final" in args.stages:
            tried = [row for row in read(args.output / f"{TRIALS}.csv") if row["family"] == family]
            compared = compare(family, args.seeds, args.peer_seeds, tried, methods)
            _keep(args.output, "robust", family, compared)
            own = [row["own_status"] == "converged" for row in compared if "own_status" in row]
            print(f"{family}: ours converged in {sum(own)} of {len(own)}", flush=True)


def _keep(output: Path, name: str, family: str, rows: Sequence[Row]) -> None:
    """Replace the rows of a family by those of a new run, and record the machine."""
    path, again = output / f"{name}.csv", {row["method"] for row in rows}
    kept = [row for row in read(path) if row["family"] != family or row["method"] not in again]
    write_csv(path, sorted([*kept, *rows], key=_order), COLUMNS)
    record_machine(output, name)


def _order(row: Row) -> tuple[int, bool, int]:
    """Sort by family, ours first, then in the order of the peers."""
    methods = [peer.method for peer in installed(NAMES)]
    name = row["method"].removesuffix(TUNED)
    place = methods.index(name) if name in methods else -1
    return list(FAMILIES).index(row["family"]), not name.startswith("ours"), place


if __name__ == "__main__":
    main()
