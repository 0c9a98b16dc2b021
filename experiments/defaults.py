"""Which settings of the dual side train well: three small problems, a grid, three seeds.

    python -m experiments.defaults [--seeds 3] [--epochs 40]

Writes experiments/results/defaults.csv (one row per problem and setting, medians over seeds) and
prints the ranking that experiments/DEFAULTS.md discusses. Every run is one thread.
"""

import argparse
import csv
import itertools
import math
import multiprocessing
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.progress import track
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

RESULTS = Path(__file__).parent / "results" / "defaults.csv"
GRID = {
    "nu": [0.5, 0.8, 1.0],
    "beta_1": [0.1, 1.0, 10.0],
    "omega": [1.0, 1.1, 1.3],
    "sigma": ["penalty", "paper"],
}
TOLERANCE = 1e-2  # on the largest entry of a violation


class Outcome(NamedTuple):
    """End of a run: objective on all training data and largest violation."""

    loss: float
    violation: float


class Training(NamedTuple):
    """A constrained training problem, ready to run."""

    params: list[nn.Parameter]
    constraints: ConstraintRegistry
    steps: int  # per epoch
    step: Callable[[int, PowerALMOptimizer], Tensor]  # augmented loss of a batch
    outcome: Callable[[], Outcome]


def digits() -> tuple[Tensor, Tensor]:
    """The 1,797 images of 8 × 8 that scikit-learn carries."""
    data = load_digits()
    return torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)


def orthonormal(generator: torch.Generator) -> Training:
    """Classifier whose 32 first-layer rows are orthonormal: 528 equalities of parameters."""
    x, target = digits()
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    initialise(model, generator)
    upper = torch.triu_indices(32, 32)
    constraints = ConstraintRegistry()

    @constraints.equality("orthonormal")
    def gram() -> Tensor:
        W = model[0].weight
        return (W @ W.T - torch.eye(32))[upper[0], upper[1]]

    def step(k: int, optimizer: PowerALMOptimizer) -> Tensor:
        rows = torch.randint(len(x), (64,), generator=generator)
        return cross_entropy(model(x[rows]), target[rows])

    def outcome() -> Outcome:
        return Outcome(cross_entropy(model(x), target).item(), gram().abs().max().item())

    return Training(list(model.parameters()), constraints, 28, step, outcome)


def class_losses(generator: torch.Generator) -> Training:
    """Small classifier, no class's loss above 0.35: 10 inequalities of the batch."""
    x, target = digits()
    x = x[:, ::2]  # half of the pixels, so that the bound is not free
    model = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10))
    initialise(model, generator)
    constraints = ConstraintRegistry()
    constraints.inequality("class_loss", size=10)

    def by_class(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        losses = cross_entropy(model(x[rows]), target[rows], reduction="none")
        count = torch.zeros(10).index_add(0, target[rows], torch.ones(len(rows)))
        sums = torch.zeros(10).index_add(0, target[rows], losses)
        return losses.mean(), sums / count.clamp(min=1) - 0.35, count

    def step(k: int, optimizer: PowerALMOptimizer) -> Tensor:
        loss, value, count = by_class(torch.randint(len(x), (64,), generator=generator))
        return optimizer.augment(loss, class_loss=(value, count))

    def outcome() -> Outcome:
        loss, value, _ = by_class(torch.arange(len(x)))
        return Outcome(loss.item(), value.clamp(min=0).max().item())

    return Training(list(model.parameters()), constraints, 28, step, outcome)


def boundary(generator: torch.Generator) -> Training:
    """Network u with u'' = −9 u in (0, 2) and u(0) = 1, u'(0) = 0: two equalities of parameters."""
    model = nn.Sequential(
        nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1)
    )
    initialise(model, generator)
    constraints = ConstraintRegistry()

    def derivatives(s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        s = s.requires_grad_()
        u = model(s)
        du = torch.autograd.grad(u.sum(), s, create_graph=True)[0]
        return u, du, torch.autograd.grad(du.sum(), s, create_graph=True)[0]

    @constraints.equality("initial_values")
    def start() -> Tensor:
        with torch.enable_grad():
            u, du, _ = derivatives(torch.zeros(1, 1))
        return torch.cat([u - 1, du]).reshape(-1)

    def residual(s: Tensor) -> Tensor:
        u, _, ddu = derivatives(s)
        return ((ddu + 9 * u) / 9).square().mean()

    def step(k: int, optimizer: PowerALMOptimizer) -> Tensor:
        return residual(2 * torch.rand(64, 1, generator=generator))

    def outcome() -> Outcome:
        grid = torch.linspace(0, 2, 200).reshape(-1, 1)
        return Outcome(residual(grid).item(), start().abs().max().item())

    return Training(list(model.parameters()), constraints, 28, step, outcome)


PROBLEMS = {"orthonormal": orthonormal, "class_losses": class_losses, "boundary": boundary}


def initialise(model: nn.Module, generator: torch.Generator) -> None:
    """Weights from the generator, so that a seed fixes the run."""
    with torch.no_grad():
        for p in model.parameters():
            fan_in = p.shape[-1]
            p.copy_(torch.randn(p.shape, generator=generator) / math.sqrt(fan_in))


def run(job: tuple[str, dict[str, float | str], int, int]) -> Outcome:
    """One training."""
    problem, setting, seed, epochs = job
    torch.set_num_threads(1)
    training = PROBLEMS[problem](torch.Generator().manual_seed(seed))
    base = torch.optim.Adam(training.params, lr=3e-3)
    optimizer = PowerALMOptimizer(
        base,
        training.constraints,
        on_nonfinite="skip",
        **setting,  # type: ignore[arg-type]
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for k in range(training.steps):
            optimizer.zero_grad()
            training.step(k, optimizer).backward()
            optimizer.step()
        optimizer.update_multipliers()
        schedule.step()
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
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with args.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(
            {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows
        )
    print(ranking(rows, args.seeds))


def ranking(rows: list[dict[str, object]], seeds: int) -> str:
    """The best settings: most feasible runs first, then the loss relative to the best feasible."""
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
