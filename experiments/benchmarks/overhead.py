"""Cost of a constrained training step against a hand-written augmented Lagrangian.

    python -m experiments.benchmarks.overhead [--rounds 60] [--steps 10]
    python -m experiments.benchmarks.overhead --against FOLDER

One process, one thread. In every round each method makes `steps` training steps, in an order that
rotates from round to round; a ratio is the median over rounds of (method / floor in that round).
mdmm needs an object for each constraint and is not run with more than 1,000.
Writes experiments/results/overhead.csv and prints the table.

With --against, no peers are run: the steps of this version and of the one in FOLDER, a checkout,
alternate in the same rounds, and the median of (this / other) is printed for every case and ν.
"""

import argparse
import platform
import resource
import statistics
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from experiments.atomic_files import write_csv
from experiments.benchmarks.interleaved import Step, interleave, ratios
from experiments.benchmarks.machine import record_machine
from experiments.benchmarks.training_steps import (
    EPOCH,
    cooper,
    floor,
    humancompatible,
    modified_differential,
    ours,
    plain,
    step_of,
    wrapped,
)
from experiments.benchmarks.training_tasks import Blocks, Signs, Task
from experiments.benchmarks.version_comparison import compare
from experiments.counting_bar import track

RESULTS = Path(__file__).parent.parent / "results" / "overhead.csv"
COLUMNS = ("case", "method", "ratio_to_floor", "first_quartile", "third_quartile")
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
    """Seconds per step of every method that is installed, round by round."""
    task, batch = CASES[case]
    methods = {}
    for name, build in METHODS.items():
        try:
            step = build(task(), batch)
        except ImportError as error:
            print(f"{name} is skipped: {error}")
            continue
        if step is not None:
            methods[name] = step
    return interleave(methods, rounds, steps, label=case, warm_up=EPOCH + 5)


def memory(steps: int) -> tuple[float, float]:
    """Floats that the wrapper holds per constraint, and growth of the peak over `steps`, in MB."""
    task = Signs()
    optimizer = wrapped(task, False, nu=0.7)
    step = step_of(optimizer, task, False)
    for _ in range(200):
        step()
    state = optimizer.dual.state_dict()
    held = sum(value.numel() for value in state.values() if isinstance(value, Tensor))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in track(range(steps), "memory"):
        step()
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return held / 100_000, growth


def compare_with_peers(rounds: int, steps: int, memory_steps: int, output: Path) -> None:
    """Measure all cases and methods, write the CSV and print the table."""
    rows = []
    for case in CASES:
        times = measure(case, rounds, steps)
        for name in times:
            first, middle, third = statistics.quantiles(ratios(times, name, "floor"))
            cells = [case, name, f"{middle:.3f}", f"{first:.3f}", f"{third:.3f}"]
            rows.append(dict(zip(COLUMNS, cells, strict=True)))
    write_csv(output, rows, COLUMNS)
    record_machine(output.parent / "benchmarks", "overhead")
    print("| case | " + " | ".join(METHODS) + " |\n|" + "---|" * (len(METHODS) + 1))
    for case in CASES:
        found = {row["method"]: row["ratio_to_floor"] for row in rows if row["case"] == case}
        print(f"| {case} | " + " | ".join(found.get(name, "–") for name in METHODS) + " |")
    held, growth = memory(memory_steps)
    print(f"memory: {held:.1f} floats per constraint held, peak grew by {growth:.1f} MB")
    print(f"written to {output}")


def compare_versions(folder: Path, rounds: int, steps: int) -> None:
    """Print the time of a step over that of another version, by case and ν."""
    print("| case | ν | this / other version | quartiles |\n|---|---|---|---|")
    for case, nu, (first, middle, third) in compare(CASES, folder, rounds, steps):
        print(f"| {case} | {nu:g} | {middle:.3f} | {first:.3f} to {third:.3f} |", flush=True)


def main() -> None:
    """Compare with the peers, or with another version of the package."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--memory-steps", type=int, default=10_000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--against", type=Path, help="checkout of another version to compare with")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.against is not None:
        if not (args.against / "torch_powalm" / "__init__.py").is_file():
            parser.error(f"--against must be a checkout with torch_powalm, got {args.against}")
        compare_versions(args.against, args.rounds, args.steps)
    else:
        compare_with_peers(args.rounds, args.steps, args.memory_steps, args.output)
    print(
        f"{args.rounds} rounds of {args.steps} steps, one thread, {platform.machine()}, "
        f"Python {platform.python_version()}, torch {version('torch')}"
    )


if __name__ == "__main__":
    main()
