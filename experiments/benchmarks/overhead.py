"""What a constrained training step costs, against a hand-written augmented Lagrangian.

    python -m experiments.benchmarks.overhead [--rounds 60] [--steps 10]

One process, one thread. In every round each method makes `steps` training steps, in an order that
rotates from round to round; a ratio is the median over rounds of (method / floor in that round).
mdmm has an object for each constraint and is left out beyond 1,000 of them.
Writes experiments/results/overhead.csv and prints the table.
"""

import argparse
import csv
import platform
import resource
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from experiments.benchmarks.machine import write_machine
from experiments.benchmarks.training_steps import (
    EPOCH,
    Step,
    cooper,
    floor,
    humancompatible,
    modified_differential,
    ours,
    plain,
)
from experiments.benchmarks.training_tasks import Blocks, Signs, Task
from experiments.progress import track
from torch_powalm import PowerALMOptimizer

RESULTS = Path(__file__).parent.parent / "results" / "overhead.csv"
CASES: dict[str, tuple[type[Task], bool]] = {
    "a: MLP, 256 row norms": (Task, False),
    "b: MLP, 10 class losses (inequalities)": (Task, True),
    "c: 100,000 unknowns, x_i^2 = 1": (Signs, False),
    "d: MLP, 256 row norms in 64 blocks": (Blocks, False),
}
METHODS: dict[str, Callable[[Task, bool], Step | None]] = {
    "plain": plain,
    "floor": floor,
    "ours nu=1": ours(1.0),
    "ours nu=0.7": ours(0.7),
    "cooper": cooper,
    "humancompatible-train": humancompatible,
    "mdmm": modified_differential,
}


def measure(case: str, rounds: int, steps: int) -> dict[str, list[float]]:
    """Seconds per step of every method, round by round."""
    task, batch = CASES[case]
    methods = {}
    for name, build in METHODS.items():
        try:
            step = build(task(), batch)
        except ImportError as error:
            print(f"{name} is left out: {error}")
            continue
        if step is not None:
            methods[name] = step
    for step in methods.values():
        for _ in range(EPOCH + 5):
            step()
    times: dict[str, list[float]] = {name: [] for name in methods}
    names = list(methods)
    for k in track(range(rounds), case):
        for name in names[k % len(names) :] + names[: k % len(names)]:
            start = time.perf_counter()
            for _ in range(steps):
                methods[name]()
            times[name].append((time.perf_counter() - start) / steps)
    return times


def memory(steps: int) -> tuple[float, float]:
    """Floats that the wrapper holds per constraint, and growth of the peak over `steps`, in MB."""
    task = Signs()
    step = ours(0.7)(task, False)
    for _ in range(200):
        step()
    optimizer = next(
        cell.cell_contents
        for cell in step.__closure__ or ()
        if isinstance(cell.cell_contents, PowerALMOptimizer)
    )
    held = sum(v.numel() for v in vars(optimizer.dual).values() if isinstance(v, Tensor))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in track(range(steps), "memory"):
        step()
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return held / 100_000, growth


def main() -> None:
    """Measure all cases, write the CSV and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--memory-steps", type=int, default=10_000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)

    rows = []
    for case in CASES:
        times = measure(case, args.rounds, args.steps)
        for name, values in times.items():
            ratios = [a / b for a, b in zip(values, times["floor"], strict=True)]
            quartiles = statistics.quantiles(ratios, n=4)
            rows.append(
                [case, name, f"{quartiles[1]:.3f}", f"{quartiles[0]:.3f}", f"{quartiles[2]:.3f}"]
            )
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with args.output.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["case", "method", "ratio_to_floor", "first_quartile", "third_quartile"])
        writer.writerows(rows)
    write_machine(args.output.parent / "benchmarks" / "overhead.json")

    print("| case | " + " | ".join(METHODS) + " |\n|" + "---|" * (len(METHODS) + 1))
    for case in CASES:
        found = {row[1]: row[2] for row in rows if row[0] == case}
        print(f"| {case} | " + " | ".join(found.get(name, "–") for name in METHODS) + " |")
    held, growth = memory(args.memory_steps)
    print(f"memory: {held:.1f} floats per constraint held, peak grew by {growth:.1f} MB")
    print(
        f"{args.rounds} rounds of {args.steps} steps, one thread, {platform.machine()}, "
        f"Python {platform.python_version()}, torch {version('torch')}; written to {args.output}"
    )


if __name__ == "__main__":
    main()
