"""Rates, losses and shapes on Adult and COMPAS, and class losses on images of digits."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.constraint_bench.networks import mlp, pooled_images, row_batches
from experiments.data.tabular import TableSource
from experiments.zoo_tasks.zoo_task import Build, Trial, Values, excess
from torch_powalm import ConstraintRegistry, zoo

Array = Any  # numpy.ndarray


def classifier(
    register: Callable[[ConstraintRegistry], zoo.Entry],
    values: Callable[[zoo.Entry, Tensor, Tensor, Tensor], Any],
    violation: Callable[[Array, Array, Array], Sequence[float]],
    constraints: ConstraintRegistry,
    generator: torch.Generator,
    tolerance: float = 0.01,
    dataset: str = "adult",
    steps: int = 160,
    lr: float = 1e-2,
) -> Trial:
    """A network on a table whose decisions or losses are constrained."""
    table = TableSource(dataset).load()
    x, labels, group = table.train, table.train_labels, table.train_groups
    model = mlp([x.shape[1], 16, 1], nn.ReLU, generator)
    entry = register(constraints)

    def evaluate(rows: Tensor) -> tuple[Tensor, Values]:
        logits = model(x[rows]).squeeze(1)
        loss = functional.binary_cross_entropy_with_logits(logits, labels[rows])
        return loss, {entry.name: values(entry, logits, labels[rows], group[rows])}

    @torch.no_grad()
    def largest() -> float:
        logits = model(x).squeeze(1).double()
        return excess(violation(logits.numpy(), labels.numpy() > 0, group.numpy() > 0))

    batches = row_batches(len(x), 200, steps, generator)
    return Trial(model, batches, evaluate, largest, tolerance, lr)


def losses_of(logits: Array, y: Array) -> Array:
    """Logistic loss of each row."""
    return np.logaddexp(0, np.where(y, -logits, logits))


def _gap(z: Array, a: Array, b: Array) -> float:
    return abs((z[a] > 0).mean() - (z[b] > 0).mean())


def _with_labels(entry: zoo.Entry, logits: Tensor, y: Tensor, g: Tensor) -> Any:
    return entry(logits, y)


def _with_groups(entry: zoo.Entry, logits: Tensor, y: Tensor, g: Tensor) -> Any:
    return entry(logits, y, group=g)


def _losses(logits: Tensor, y: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(logits, y, reduction="none")


RATES: dict[str, Build] = {
    "false_negative_rate": partial(
        classifier,
        lambda c: zoo.false_negative_rate(c, "missed", bound=0.2, groups=2),
        _with_groups,
        lambda z, y, g: [(z[y & k] <= 0).mean() - 0.2 for k in (g, ~g)],
        tolerance=0.02,
    ),
    "false_positive_rate": partial(
        classifier,
        lambda c: zoo.false_positive_rate(c, "alarms", bound=0.03),
        _with_labels,
        lambda z, y, g: [(z[~y] > 0).mean() - 0.03],
    ),
    "precision": partial(
        classifier,
        lambda c: zoo.precision(c, "precise", bound=0.85),
        _with_labels,
        lambda z, y, g: [0.85 - y[z > 0].mean()],
        tolerance=0.02,
    ),
    "coverage": partial(
        classifier,
        lambda c: zoo.coverage(c, "quota", low=0.1, high=0.12),
        lambda e, z, y, g: e(z),
        lambda z, y, g: [(z > 0).mean() - 0.12, 0.1 - (z > 0).mean()],
    ),
    "demographic_parity": partial(
        classifier,
        lambda c: zoo.demographic_parity(c, "parity", bound=0.02),
        lambda e, z, y, g: e(z, group=g),
        lambda z, y, g: [_gap(z, g, ~g) - 0.02],
    ),
    "equal_opportunity": partial(
        classifier,
        lambda c: zoo.equal_opportunity(c, "opportunity", bound=0.03),
        _with_groups,
        lambda z, y, g: [_gap(z, g & y, ~g & y) - 0.03],
        tolerance=0.02,
        dataset="compas",
        steps=300,
        lr=3e-3,
    ),
    "equalized_odds": partial(
        classifier,
        lambda c: zoo.equalized_odds(c, "odds", bound=0.05),
        _with_groups,
        lambda z, y, g: [_gap(z, g & k, ~g & k) - 0.05 for k in (y, ~y)],
        tolerance=0.02,
        dataset="compas",
        steps=300,
    ),
}
LOSSES: dict[str, Build] = {
    "group_loss": partial(
        classifier,
        lambda c: zoo.group_loss(c, "groups", groups=2, bound=0.35),
        lambda e, z, y, g: e(_losses(z, y), g),
        lambda z, y, g: [losses_of(z, y)[k].mean() - 0.35 for k in (g, ~g)],
        steps=300,
    ),
    "worst_group_loss": partial(
        classifier,
        lambda c: zoo.worst_group_loss(c, "worst", groups=2, bound=0.37),
        lambda e, z, y, g: e(_losses(z, y), g),
        lambda z, y, g: [max(losses_of(z, y)[k].mean() for k in (g, ~g)) - 0.37],
    ),
    "loss_quantile": partial(
        classifier,
        lambda c: zoo.loss_quantile(c, "quantile", quantile=0.8, bound=0.69),
        lambda e, z, y, g: e(_losses(z, y)),
        lambda z, y, g: [(losses_of(z, y) > 0.69).mean() - 0.2],
    ),
}


def class_loss(constraints: ConstraintRegistry, generator: torch.Generator) -> Trial:
    """Digits: the mean loss of every class at most 0.2."""
    x, target = pooled_images("mnist")["train"]
    model = mlp([196, 32, 10], nn.ReLU, generator)
    entry = zoo.class_loss(constraints, "classes", classes=10, bound=0.2)

    def evaluate(rows: Tensor) -> tuple[Tensor, Values]:
        each = functional.cross_entropy(model(x[rows]), target[rows], reduction="none")
        return each.mean(), {"classes": entry(each, target[rows])}

    @torch.no_grad()
    def largest() -> float:
        log_p = model(x).double().log_softmax(1).numpy()
        each = -log_p[np.arange(len(x)), target.numpy()]
        return excess(each[target.numpy() == c].mean() - 0.2 for c in range(10))

    return Trial(model, row_batches(5000, 200, 400, generator), evaluate, largest, 0.02, lr=1e-2)


def sample_loss(constraints: ConstraintRegistry, generator: torch.Generator) -> Trial:
    """100 digits: the loss of each one at most 0.3."""
    x, target = (part[:100] for part in pooled_images("mnist")["train"])
    model = mlp([196, 24, 10], nn.ReLU, generator)
    entry = zoo.sample_loss(constraints, "each", samples=100, bound=0.3)

    def evaluate(rows: Tensor) -> tuple[Tensor, Values]:
        each = functional.cross_entropy(model(x[rows]), target[rows], reduction="none")
        # The loss asks for small weights; only the constraint asks for right predictions.
        loss = sum(p.square().sum() for p in model.parameters())
        return loss, {"each": entry(each, rows)}

    @torch.no_grad()
    def largest() -> float:
        log_p = model(x).double().log_softmax(1).numpy()
        return excess(-log_p[np.arange(100), target.numpy()] - 0.3)

    return Trial(model, row_batches(100, 50, 400, generator), evaluate, largest, 0.1, lr=1e-2)


LOSSES |= {"class_loss": class_loss, "sample_loss": sample_loss}
