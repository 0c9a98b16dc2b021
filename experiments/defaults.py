"""Search for good dual settings in training: three small problems, a grid, three seeds.

    python -m experiments.defaults [--seeds 3] [--epochs 40]

Writes experiments/results/defaults.csv (one row for each problem and setting, medians over seeds)
and prints the ranking that experiments/DEFAULTS.md discusses. Every run uses one thread.
"""

import argparse
import itertools
import math
import multiprocessing
import statistics
from pathlib import Path

import torch

from experiments.atomic_files import write_csv
from experiments.counting_bar import track
from experiments.problems.small_trainings import PROBLEMS, Outcome, train
from torch_powalm import PowerALMOptimizer

RESULTS = Path(__file__).parent / "results" / "defaults.csv"
GRID = {
    "nu": [0.5, 0.8, 1.0],
    "beta_1": [0.1, 1.0, 10.0],
    "omega": [1.0, 1.1, 1.3],
    "sigma": ["penalty", "paper"],
}
TOLERANCE = 1e-2  # largest violation of a feasible run


def run(job: tuple[str, dict[str, float | str], int, int]) -> Outcome:
    """Run one training."""
    problem, setting, seed, epochs = job
    torch.set_num_threads(1)
    training = PROBLEMS[problem](torch.Generator().manual_seed(seed))
    optimizer = PowerALMOptimizer(
        torch.optim.Adam(training.params, lr=3e-3),
        training.constraints,
        on_nonfinite="skip",
        **setting,  # type: ignore[arg-type]
    )
    for _ in train(training, optimizer, epochs):
        pass
    return training.outcome()


def main() -> None:
    """Run the grid on all cores, write the CSV, print the ranking."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    settings = [
        dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())
    ]
    jobs = [
        (problem, setting, seed, args.epochs)
        for setting in settings
        for problem in PROBLEMS
        for seed in range(args.seeds)
    ]
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        outcomes = list(track(pool.imap(run, jobs), "defaults", total=len(jobs)))

    rows = []
    for i in range(0, len(jobs), args.seeds):
        problem, setting, _, _ = jobs[i]
        runs = outcomes[i : i + args.seeds]
        rows.append(
            {
                "problem": problem,
                **setting,
                "loss": statistics.median(run.loss for run in runs),
                "violation": statistics.median(run.violation for run in runs),
                "feasible": sum(run.violation <= TOLERANCE for run in runs),
            }
        )
    rounded = [
        {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows
    ]
    write_csv(args.output, rounded)
    print(ranking(rows, args.seeds))


def ranking(rows: list[dict[str, object]], seeds: int) -> str:
    """The settings by number of feasible runs, then by loss relative to the best feasible one."""
    best = {
        problem: min(
            (float(r["loss"]) for r in rows if r["problem"] == problem and r["feasible"] == seeds),
            default=math.nan,
        )
        for problem in PROBLEMS
    }
    table: dict[tuple[object, ...], dict[str, dict[str, object]]] = {}
    for row in rows:
        table.setdefault(tuple(row[key] for key in GRID), {})[str(row["problem"])] = row

    def score(setting: tuple[object, ...]) -> tuple[float, float]:
        found = table[setting]
        feasible = sum(int(row["feasible"]) for row in found.values())  # type: ignore[call-overload]
        ratios = [float(row["loss"]) / best[name] for name, row in found.items()]  # type: ignore[arg-type]
        return -feasible, math.prod(ratios) ** (1 / len(ratios))

    lines = [
        "| "
        + " | ".join(GRID)
        + " | feasible | loss / best | "
        + " | ".join(f"{name}: loss, violation" for name in PROBLEMS)
        + " |",
        "|" + "---|" * (len(GRID) + 2 + len(PROBLEMS)),
    ]
    for setting in sorted(table, key=score):
        feasible, ratio = score(setting)
        cells = [
            f"{float(row['loss']):.4f}, {float(row['violation']):.1e}"  # type: ignore[arg-type]
            for row in (table[setting][name] for name in PROBLEMS)
        ]
        lines.append(
            "| "
            + " | ".join(map(str, setting))
            + f" | {-feasible:.0f} of {seeds * len(PROBLEMS)} | {ratio:.2f} | "
            + " | ".join(cells)
            + " |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
