"""Tasks whose constraints must hold on unseen data, each with four parts of one population.

All rows of a data set, the files for testing included, are split at random by seed: "train",
"margin" (for margins, or to choose settings), "certificate" and "test". So the parts are draws of
one population, which a certificate assumes; the test images of Fashion-MNIST are not draws of the
population of its training images.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as logistic_loss
from torch.nn.functional import cross_entropy

from experiments.constraint_bench.networks import mlp, row_batches
from experiments.constraint_bench.task import Constraint, Evaluation, Training
from experiments.data.images import Source
from experiments.data.tabular import TableSource
from torch_powalm import Rates

PARTS = ("train", "margin", "certificate", "test")
SHARPNESS = 8.0  # of the proxy sigmoid(8 logit)
SHIRT = 6
Rows = tuple[Tensor, ...]


class Case(NamedTuple):
    """A fresh training and the data that judge it.

    Args:
        training: as the methods of constraint_bench take it; the bound is stricter by the margin.
        measure: true counts of some rows, by name.
        parts: rows of each part.
        loss: mean loss on a part.
        asked: the constraint without margin, from counts.
    """

    training: Training
    measure: Callable[[Rows], dict[str, Tensor]]
    parts: dict[str, Rows]
    loss: Callable[[str], float]
    asked: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class CertifiedTask:
    """A task: the shares of the four parts, and the length of a training.

    Args:
        name: of the task and its block.
        rule: maps counts (successes, then sizes) to the values of the constraint.
        kind: how a certificate reads the counts.
        shares: of the parts, in the order of PARTS.
        steps: length of a run.
        batch_size: rows of a step.
        lr: first learning rate of Adam, which a cosine brings to 0.
        margins: to choose from by hand.
        weights: of a quadratic penalty, to choose from by hand.
        options: of PowerALMOptimizer, other than its defaults.
        build: makes a case from its parts.
    """

    name: str
    rule: Callable[[Tensor], Tensor]
    kind: Rates
    shares: tuple[float, float, float, float]
    steps: int
    batch_size: int
    lr: float
    margins: tuple[float, ...]
    weights: tuple[float, ...]
    build: Callable[["CertifiedTask", int, float, str | None], Case]
    options: Mapping[str, Any] = field(default_factory=dict)


def missed_shirts(sums: Tensor) -> Tensor:
    """Shirts that are taken for something else: at most 5 %."""
    return sums[:1] / sums[1:] - 0.05


def parity(sums: Tensor) -> Tensor:
    """Share of positive decisions: women and men differ by at most 0.05."""
    (women, men), (n, m) = sums.chunk(2)
    gap = women / n - men / m
    return torch.stack([gap, -gap]) - 0.05


def missed_positives(sums: Tensor) -> Tensor:
    """Positives that are decided against: at most 25 %."""
    return sums[:1] / sums[1:] - 0.25


def split(columns: Rows, task: CertifiedTask, generator: torch.Generator) -> dict[str, Rows]:
    """Split rows at random into the four parts."""
    n = len(columns[0])
    order, ends = torch.randperm(n, generator=generator), torch.tensor(task.shares).cumsum(0)
    pieces = order.tensor_split((ends[:-1] * n).long())
    return {name: tuple(c[rows] for c in columns) for name, rows in zip(PARTS, pieces, strict=True)}


@cache
def shirts_population(root: str | None) -> Rows:
    """All images as vectors with mean about 0, and their classes."""
    images = Source("fashion_mnist", root).load()
    pixels = torch.cat([images.train, images.test]).flatten(1)
    return pixels, torch.cat([images.train_labels, images.test_labels]).long()


@cache
def table_population(dataset: str, root: str | None) -> Rows:
    """All rows of a table: features, labels, groups."""
    t = TableSource(dataset, root).load()
    pairs = ((t.train, t.test), (t.train_labels, t.test_labels), (t.train_groups, t.test_groups))
    return tuple(torch.cat(pair) for pair in pairs)


def build_shirts(task: CertifiedTask, seed: int, margin: float, root: str | None) -> Case:
    """Cross-entropy of the other classes; the proxy of a miss is −log₂ p(shirt)."""
    generator = torch.Generator().manual_seed(seed)
    parts = split(shirts_population(root), task, generator)
    model = mlp([784, 128, 10], nn.ReLU, generator)

    def logits_of(pixels: Tensor) -> Tensor:
        logits: Tensor = model(pixels.float() / 255)
        return logits

    def evaluate(rows: Tensor) -> Evaluation:
        pixels, labels = (column[rows] for column in parts["train"])
        logits, shirt = logits_of(pixels), labels == SHIRT
        proxy = -logits[shirt].log_softmax(1)[:, SHIRT].sum() / math.log(2)
        values = {task.name: torch.stack([proxy, shirt.sum().float()])}
        return Evaluation(
            cross_entropy(logits[~shirt], labels[~shirt]), values, counts(logits, labels)
        )

    def counts(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        shirt = labels == SHIRT
        wrong = (logits.detach()[shirt].argmax(1) != SHIRT).sum()
        return {task.name: torch.stack([wrong, shirt.sum()]).float()}

    def measure(batch: Rows) -> dict[str, Tensor]:
        return counts(logits_of(batch[0]), batch[1])

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits[labels != SHIRT], labels[labels != SHIRT])

    return _case(task, margin, model, parts, evaluate, measure, generator, logits_of, loss)


def build_table(task: CertifiedTask, seed: int, margin: float, root: str | None) -> Case:
    """Logistic loss; the proxy of a decision is a steep sigmoid."""
    generator = torch.Generator().manual_seed(seed)
    dataset = task.name.split("_")[0]
    parts = split(table_population(dataset, root), task, generator)
    model = mlp([parts["train"][0].shape[1], 16, 1], nn.ReLU, generator)

    def logits_of(x: Tensor) -> Tensor:
        logits: Tensor = model(x).squeeze(1)
        return logits

    def sums(decided: Tensor, labels: Tensor, groups: Tensor) -> Tensor:
        if dataset == "compas":
            return torch.stack([((1 - decided) * labels).sum(), labels.sum()])
        masks = torch.stack([groups, 1 - groups])
        return torch.cat([masks @ decided, masks.sum(1)])

    def evaluate(rows: Tensor) -> Evaluation:
        x, labels, groups = (column[rows] for column in parts["train"])
        logits = logits_of(x)
        proxy = sums(torch.sigmoid(SHARPNESS * logits), labels, groups)
        strict = sums((logits.detach() > 0).float(), labels, groups)
        return Evaluation(logistic_loss(logits, labels), {task.name: proxy}, {task.name: strict})

    def measure(batch: Rows) -> dict[str, Tensor]:
        return {task.name: sums((logits_of(batch[0]) > 0).float(), batch[1], batch[2])}

    return _case(task, margin, model, parts, evaluate, measure, generator, logits_of, logistic_loss)


def _case(
    task: CertifiedTask,
    margin: float,
    model: nn.Module,
    parts: dict[str, Rows],
    evaluate: Callable[[Tensor], Evaluation],
    measure: Callable[[Rows], dict[str, Tensor]],
    generator: torch.Generator,
    logits_of: Callable[[Tensor], Tensor],
    loss_of: Callable[[Tensor, Tensor], Tensor],
) -> Case:
    @torch.no_grad()
    def loss(part: str) -> float:
        x, labels, *_ = parts[part]
        return loss_of(logits_of(x), labels).item()

    @torch.no_grad()
    def values(part: str) -> dict[str, Tensor]:
        return {task.name: task.rule(measure(parts[part])[task.name])}

    def stricter(sums: Tensor) -> Tensor:
        return task.rule(sums) + margin

    size = len(task.rule(torch.ones(4 if task.kind.disjoint else 2)))
    block = Constraint(task.name, True, size, 1e-3, from_statistics=stricter)
    batches = row_batches(len(parts["train"][0]), task.batch_size, task.steps, generator)
    training = Training(model, [block], batches, evaluate, loss, values)
    return Case(training, measure, parts, loss, task.rule)


TASKS = {
    task.name: task
    for task in (
        CertifiedTask(
            *("shirts", missed_shirts, Rates(), (4 / 7, 1 / 7, 1 / 7, 1 / 7), 844, 256, 1e-3),
            margins=(0.0, 0.01, 0.02, 0.03, 0.04),
            weights=(1.0, 3.0, 10.0),
            build=build_shirts,
            options={"updates": 10},  # as in TRAINING.md
        ),
        CertifiedTask(
            *("adult_parity", parity, Rates(disjoint=True), (0.25, 0.25, 0.25, 0.25)),
            *(1000, 100, 3e-3),
            margins=(0.0, 0.01, 0.02, 0.03, 0.04),
            weights=(10.0, 100.0, 1000.0),
            build=build_table,
        ),
        CertifiedTask(
            *("compas_missed", missed_positives, Rates(), (0.25, 0.25, 0.25, 0.25)),
            *(800, 100, 3e-3),
            margins=(0.0, 0.02, 0.04, 0.06, 0.08),
            weights=(1.0, 10.0, 100.0),
            build=build_table,
        ),
    )
}
