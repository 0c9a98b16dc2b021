"""`python -m experiments.physics.run_physics rarefaction [--seeds 5] [--epochs N]`.

Trains with nothing set, over Adam with its default learning rate and ReduceLROnPlateau as in the
published setting, and appends one line per seed to experiments/results/physics.csv.
"""

import argparse
import csv
import time
from pathlib import Path

import torch

from experiments.physics.networks_at_points import PUBLISHED
from torch_powalm import PowerALMOptimizer

TABLE = Path("experiments/results/physics.csv")


def train(problem: str, seed: int, epochs: int) -> dict[str, object]:
    """One training; returns its line of the table."""
    equation = PUBLISHED[problem].build(seed)
    base = torch.optim.Adam(equation.network.parameters())
    optimizer = PowerALMOptimizer(base, equation.constraints, total_steps=epochs)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=100, factor=0.98)
    start = time.perf_counter()
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = equation.loss()
        loss.backward()
        optimizer.step()
        plateau.step(loss.detach())
    violation = max(v.max for v in equation.constraints.violations().values())
    return {
        "problem": problem,
        "seed": seed,
        "epochs": epochs,
        "error": f"{equation.error():.4e}",
        "loss": f"{float(loss):.4e}",
        "violation": f"{violation:.4e}",
        "seconds": round(time.perf_counter() - start),
    }


def main() -> None:
    """Train all seeds and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("problem", choices=PUBLISHED)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, help="default: those of the published runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    published = PUBLISHED[arguments.problem]
    for seed in range(arguments.seeds):
        row = train(arguments.problem, seed, arguments.epochs or published.epochs)
        new = not TABLE.exists()
        with TABLE.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            if new:
                writer.writeheader()
            writer.writerow(row)
        print(row, f"published {published.what}: {published.number:g}", flush=True)


if __name__ == "__main__":
    main()
