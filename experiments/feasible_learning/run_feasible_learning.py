"""Feasible learning on MNIST and Fashion-MNIST, against plain training and Cooper.

    python -m experiments.feasible_learning.run_feasible_learning [--root FOLDER] [--epochs 40]

Writes experiments/FEASIBLE_LEARNING.md. Without --root it takes the samples in this repository.
"""

import argparse
import importlib.util
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch

from experiments.atomic_files import write_text
from experiments.counting_bar import track
from experiments.data.images import NAMES, Source
from experiments.feasible_learning.sample_training import METHODS, Outcome, samples, train

REPORT = Path(__file__).parents[1] / "FEASIBLE_LEARNING.md"
COLUMNS = ("mean", "99th percentile", "maximum", "above the bound", "test accuracy")
TEXT = """\
# Feasible learning

Feasible Learning (Ramirez et al., AISTATS 2025) asks that the loss of *every* training sample is
at most a bound, here {bound:g}, instead of a small mean. Each sample has a multiplier: an indexed
block of {n:,} entries. A network with one hidden layer is trained by Adam (lr 1e-3, cosine
schedule, batches of 128) for {epochs} epochs on {what}; medians over {seeds} seeds, with the
smallest and the largest in brackets. "Ours" has nothing set. Cooper's IndexedMultiplier needs a
dual rate, so three are shown; none was chosen by its result. Losses are of the final network on
all training samples.

    {command}

{table}
"""


def methods() -> list[str]:
    """Return the methods that can run here."""
    found = importlib.util.find_spec("cooper") is not None
    return [name for name in METHODS if found or not name.startswith("Cooper")]


def cell(values: Sequence[float], percent: bool) -> str:
    """Format a median with the range of all seeds."""
    shape = "{:.1%}" if percent else "{:.3g}"
    middle, low, high = (shape.format(f(values)) for f in (statistics.median, min, max))
    return f"{middle} ({low}, {high})".replace("%", " %")


def row(dataset: str, method: str, found: Sequence[Outcome]) -> str:
    """Return one row of the table."""
    columns = zip(*found, strict=True)
    cells = [cell(values, i >= 3) for i, values in enumerate(columns)]
    return f"| {dataset} | {method} | " + " | ".join(cells) + " |"


def main() -> None:
    """Train and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", help="folder of the complete data, in torchvision's layout")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--bound", type=float, default=0.5)
    parser.add_argument("--first", type=int, help="take only so many samples")
    parser.add_argument("--output", type=Path, default=REPORT)
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = ["| data | method | " + " | ".join(COLUMNS) + " |", "|" + "---|" * (2 + len(COLUMNS))]
    n = 0
    for dataset, name in NAMES.items():
        data = samples(Source(dataset, args.root).load(), args.first)
        n = len(data.x)
        for method in methods():
            found = [
                train(method, data, args.bound, args.epochs, seed)
                for seed in track(range(args.seeds), f"{name}, {method}")
            ]
            lines.append(row(name, method, found))
            print(lines[-1], flush=True)
    given = f" --epochs {args.epochs} --seeds {args.seeds} --bound {args.bound:g}"
    given += " --root FOLDER" if args.root else ""
    what = "the complete data" if args.root else "the samples in this repository"
    command = "python -m experiments.feasible_learning.run_feasible_learning" + given
    values = {"bound": args.bound, "n": n, "epochs": args.epochs, "seeds": args.seeds}
    table = "\n".join(lines)
    write_text(args.output, TEXT.format(**values, what=what, command=command, table=table))


if __name__ == "__main__":
    main()
