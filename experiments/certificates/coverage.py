"""Coverage: how often a certificate of a small training is wrong about the rest of the population.

    python -m experiments.certificates.coverage [--root FOLDER] [--trainings 500]

Each training draws rows of Adult or COMPAS. The rows that are left are the population: held-out
samples are drawn from them, with replacement, and the true values are computed on all of them. A
model is certified twice: with the bounds of its training, and with bounds a hair below its true
values, where every verdict "holds" is wrong. The table has one row for each training; what it has
is not trained again.
"""

import argparse
import csv
import math
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as logistic_loss

from experiments.atomic_files import write_text
from experiments.certificates.certified_tasks import Rows, table_population
from experiments.certificates.held_out_feasibility import read
from torch_powalm import (
    Certificate,
    ConstraintRegistry,
    Mean,
    PowerALMOptimizer,
    Rates,
    certify,
)

TABLE = Path("outputs/certificates/coverage.csv")
KEPT = Path(__file__).parent.parent / "results" / "certificates" / "coverage.csv"
TRAIN, HELD_OUT, STEPS = 400, 1000, 60
HIGHEST = 3.0  # losses are clamped at this value
ASKED = {"missed": [0.3], "parity": [0.15, 0.15], "class_loss": [0.6, 0.6]}
HAIR = 1e-9


def registry(asked: dict[str, list[float]]) -> ConstraintRegistry:
    """Missed positives, parity of decisions in both directions, and the loss of each class."""
    constraints = ConstraintRegistry()
    missed, gap = torch.tensor(asked["missed"]).double(), torch.tensor(asked["parity"]).double()

    def parity(s: Tensor) -> Tensor:
        (a, b), (n, m) = s.chunk(2)
        return torch.stack([a / n - b / m, b / m - a / n]) - gap.to(s)

    constraints.inequality("missed", size=1, from_statistics=lambda s: s[:1] / s[1:] - missed.to(s))
    constraints.inequality("parity", size=2, from_statistics=parity)
    constraints.inequality("class_loss", size=2)
    return constraints


def counts(decided: Tensor, labels: Tensor, groups: Tensor) -> dict[str, Tensor]:
    """Sums that the two rates take."""
    masks = torch.stack([groups, 1 - groups])
    return {
        "missed": torch.stack([((1 - decided) * labels).sum(), labels.sum()]),
        "parity": torch.cat([masks @ decided, masks.sum(1)]),
    }


def train(rows: Rows, generator: torch.Generator) -> nn.Linear:
    """A logistic model under the constraints, with a margin between 0 and 0.1."""
    x, labels, groups = rows
    model = nn.Linear(x.shape[1], 1)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    margin = 0.1 * torch.rand(1, generator=generator).item()
    base, constraints = torch.optim.Adam(model.parameters(), lr=0.05), registry(ASKED)
    optimizer = PowerALMOptimizer(base, constraints, total_steps=STEPS, margin=margin)
    asked = torch.tensor(ASKED["class_loss"])
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = model(x).squeeze(1)
        losses = logistic_loss(logits, labels, reduction="none")
        means = torch.stack([losses[labels == c].mean() for c in range(2)])
        loss = optimizer.augment(
            losses.mean(),
            strict=counts((logits.detach() > 0).float(), labels, groups),
            class_loss=means - asked,
            **counts(torch.sigmoid(4 * logits), labels, groups),
        )
        loss.backward()
        optimizer.step()
    return model.eval()


def measured(model: nn.Linear, rows: Rows) -> dict[str, Any]:
    """Counts, and one clamped loss per row of each class."""
    x, labels, groups = rows
    with torch.no_grad():
        logits = model(x).squeeze(1)
    losses = logistic_loss(logits, labels, reduction="none").clamp(max=HIGHEST)
    found = counts((logits > 0).float(), labels, groups)
    return {**found, "class_loss": [losses[labels == c] for c in range(2)]}


def truth(model: nn.Linear, rows: Rows) -> dict[str, list[float]]:
    """The values of all entries on all rows."""
    found = measured(model, rows)
    (k, n), ((a, b), (m, o)) = found["missed"].double(), found["parity"].double().chunk(2)
    gap = float(a / m - b / o)
    means = [float(part.double().mean()) for part in found["class_loss"]]
    return {"missed": [float(k / n)], "parity": [gap, -gap], "class_loss": means}


def certificate(values: dict[str, Any], asked: dict[str, list[float]]) -> Certificate:
    """The certificate of some measured values, with these bounds."""
    losses = Mean(0.0, HIGHEST, bound=asked["class_loss"])
    kinds = {"missed": Rates(), "parity": Rates(disjoint=True), "class_loss": losses}
    return certify(registry(asked), lambda batch: values, [0], kinds=kinds)


def row(dataset: str, seed: int, root: str | None) -> dict[str, Any]:
    """Train and certify once."""
    start, generator = time.process_time(), torch.Generator().manual_seed(seed)
    columns = table_population(dataset, root)
    used, left = torch.randperm(len(columns[0]), generator=generator).split(
        [TRAIN, len(columns[0]) - TRAIN]
    )
    drawn = left[torch.randint(len(left), (HELD_OUT,), generator=generator)]
    model = train(tuple(c[used] for c in columns), generator)
    true = truth(model, tuple(c[left] for c in columns))
    values = measured(model, tuple(c[drawn] for c in columns))
    natural = certificate(values, ASKED)
    hair = {name: [v - HAIR for v in entries] for name, entries in true.items()}
    least = certificate(values, hair)
    flat = [v for entries in true.values() for v in entries]
    asked = [v for entries in ASKED.values() for v in entries]
    shown = [e.upper - e.asked for e in natural]
    over = [t - a for t, a in zip(flat, asked, strict=True)]
    wrong = [e.verdict == "holds" and o > 0 for e, o in zip(natural, over, strict=True)]
    low = [s < o - HAIR for s, o in zip(shown, over, strict=True)]
    return {
        "dataset": dataset,
        "seed": seed,
        "holds": sum(e.verdict == "holds" for e in natural),
        "truly_met": sum(o <= 0 for o in over),
        "wrong": sum(wrong),
        "bounds_below_truth": sum(low),
        "least_favorable_wrong": sum(e.verdict == "holds" for e in least),
        **{name: f"{ratio:.3f}" for name, ratio in widths(values, least).items()},
        "seconds": f"{time.process_time() - start:.2f}",
    }


def widths(values: dict[str, Any], least: Certificate) -> dict[str, float]:
    """Widths of the bounds relative to exact binomial ones of one rate at 95 %, or their like.

    Of a difference: the root of the sum of the squares of both rates' widths; of a mean: 1.645
    standard errors.
    """
    from scipy.stats import binomtest

    def width(k: float, n: float, side: str) -> float:
        limits = binomtest(int(k), int(n), alternative=side).proportion_ci(0.95)
        return limits.high - k / n if side == "less" else k / n - limits.low

    found = {name: [e.upper - e.estimate for e in least[name]] for name in ASKED}
    (k, n), ((a, b), (m, o)) = values["missed"].tolist(), values["parity"].reshape(2, 2).tolist()
    gap = math.hypot(width(a, m, "less"), width(b, o, "greater"))
    normal = [1.645 * float(v.std()) / math.sqrt(len(v)) for v in values["class_loss"]]
    return {
        "missed_width": found["missed"][0] / width(k, n, "less"),
        "parity_width": found["parity"][0] / gap,
        "class_loss_width": found["class_loss"][1] / normal[1],
    }


def main() -> None:
    """Train what the table does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="folder of the complete data; default: the samples")
    parser.add_argument("--trainings", type=int, default=500, help="for each data set")
    parser.add_argument("--keep", action="store_true", help="copy the table to the results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # so short a run has few updates
    done = {(r["dataset"], r["seed"]) for r in read(TABLE)}
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    for seed in range(given.trainings):
        for dataset in ("adult", "compas"):
            if (dataset, str(seed)) in done:
                continue
            new = row(dataset, seed, given.root)
            with TABLE.open("a", newline="") as file:
                writer = csv.DictWriter(file, list(new))
                if file.tell() == 0:
                    writer.writeheader()
                writer.writerow(new)
    if given.keep:
        write_text(KEPT, TABLE.read_text())


if __name__ == "__main__":
    main()
