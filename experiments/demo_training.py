"""A small constrained training, offline: no digit may have a mean loss above 0.35.

    python -m experiments.demo_training [--epochs 60] [--output outputs/demo_training]

Trains a small classifier on scikit-learn's digits, without constraints and with them for ν = 0.8
and ν = 1. Prints a table and writes a figure.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.table import Table

from experiments.counting_bar import track
from experiments.problems.small_trainings import Outcome, class_losses, train
from torch_powalm import DualRecord, PowerALMOptimizer

METHODS = {
    "unconstrained": {"beta_1": 1e-12, "omega": 1.0},
    "ν = 0.8": {"nu": 0.8},
    "ν = 1": {"nu": 1.0},
}
COLORS = {"unconstrained": "0.5", "ν = 0.8": "C0", "ν = 1": "C3"}
History = list[tuple[Outcome, DualRecord]]


def main() -> None:
    """Train, print the table, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--output", type=Path, default=Path("outputs/demo_training"))
    args = parser.parse_args()
    torch.set_num_threads(1)

    histories: dict[str, History] = {}
    for name, settings in METHODS.items():
        training = class_losses(torch.Generator().manual_seed(0))
        optimizer = PowerALMOptimizer(
            torch.optim.Adam(training.params, lr=3e-3), training.constraints, **settings
        )
        epochs = train(training, optimizer, args.epochs)
        histories[name] = list(track(epochs, f"training, {name}", total=args.epochs))

    show(histories)
    args.output.mkdir(parents=True, exist_ok=True)
    draw(histories, args.output / "demo.png")
    print(f"figure written to {args.output / 'demo.png'}")


def show(histories: dict[str, History]) -> None:
    """Table of the last epoch."""
    table = Table(title="Digits, 10 constraints: mean loss of every class at most 0.35")
    columns = (
        "method",
        "mean loss",
        "worst class's loss",
        "largest violation",
        "feasible from epoch",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "method" else "right")
    for name, history in histories.items():
        last = history[-1][0]
        infeasible = [i for i, (outcome, _) in enumerate(history, 1) if outcome.violation > 1e-2]
        first = max(infeasible, default=0) + 1
        table.add_row(
            name,
            f"{last.loss:.4f}",
            f"{0.35 + last.violation:.4f}" if last.violation else "≤ 0.3500",
            f"{last.violation:.1e}",
            str(first) if first <= len(history) else "never",
        )
    Console().print(table)


def draw(histories: dict[str, History], path: Path) -> None:
    """Violation, loss and multipliers over epochs."""
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    for name, history in histories.items():
        epochs = range(1, len(history) + 1)
        color = COLORS[name]
        violation = [max(outcome.violation, 1e-4) for outcome, _ in history]
        axes[0].semilogy(epochs, violation, color=color, label=name)
        axes[1].plot(epochs, [outcome.loss for outcome, _ in history], color=color, label=name)
        if name != "unconstrained":
            axes[2].plot(epochs, [r.y_norm for _, r in history], color=color, label=name)
    axes[0].axhline(1e-2, color="0.8", linewidth=0.8)
    axes[0].set_ylabel("largest violation (floor 1e-4)")
    axes[1].set_ylabel("mean loss")
    axes[2].set_ylabel("norm of the multipliers")
    for axis in axes:
        axis.set_xlabel("epoch")
        axis.legend(frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
