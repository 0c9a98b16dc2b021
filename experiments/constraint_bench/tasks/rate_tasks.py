"""Rates of a classifier's decisions on Adult and COMPAS, judged on hard decisions.

The gradient comes from the proxy sigmoid(8 logit). Each constraint is a function of sums over the
batch: decisions in a group, and rows in the group. A batch without a group gives 0/0.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as logistic_loss

from experiments.constraint_bench.networks import mlp, row_batches
from experiments.constraint_bench.task import Constraint, Evaluation, Task, Training
from experiments.data.tabular import TableSource

SHARPNESS = 8.0
Masks = Callable[[Tensor, Tensor], Tensor]  # labels and groups to indicators, one row for each rate


def parity(rates: Tensor) -> Tensor:
    """Share of positive decisions: women and men differ by at most 0.03."""
    gap = rates[0] - rates[1]
    return torch.stack([gap, -gap]) - 0.03


def opportunity(rates: Tensor) -> Tensor:
    """Share of positive decisions among positives: women and men differ by at most 0.03."""
    gap = rates[0] - rates[1]
    return torch.stack([gap, -gap]) - 0.03


def missed(rates: Tensor) -> Tensor:
    """False-negative rate in each group: at most 0.25."""
    return 1 - rates - 0.25


def quota(rates: Tensor) -> Tensor:
    """Share of positive decisions: equal to 0.12."""
    return rates - 0.12


def recall(rates: Tensor) -> Tensor:
    """Share of positive decisions among positives: at least 0.8."""
    return 0.8 - rates


def by_group(labels: Tensor, groups: Tensor) -> Tensor:
    """Rows of group 1, and of group 0."""
    return torch.stack([groups, 1 - groups])


def positives_by_group(labels: Tensor, groups: Tensor) -> Tensor:
    """Positive rows of group 1, and of group 0."""
    return torch.stack([groups * labels, (1 - groups) * labels])


def everyone(labels: Tensor, groups: Tensor) -> Tensor:
    """All rows."""
    return torch.ones(1, len(labels))


def positives(labels: Tensor, groups: Tensor) -> Tensor:
    """All positive rows."""
    return labels.unsqueeze(0)


def build(
    dataset: str,
    masks: Masks,
    rule: Callable[[Tensor], Tensor],
    inequality: bool,
    hidden: list[int],
    batch_size: int,
    steps: int,
    generator: torch.Generator,
) -> Training:
    """Train a classifier under a rule on rates."""
    table = TableSource(dataset).load()
    data = {
        "train": (table.train, table.train_labels, table.train_groups),
        "test": (table.test, table.test_labels, table.test_groups),
    }
    model = mlp([table.train.shape[1], *hidden, 1], nn.ReLU, generator)
    rates = len(masks(table.train_labels[:1], table.train_groups[:1]))

    def value(statistics: Tensor) -> Tensor:
        return rule(statistics[:rates] / statistics[rates:])

    def evaluate(rows: Tensor) -> Evaluation:
        x, labels, groups = (column[rows] for column in data["train"])
        logits = model(x).squeeze(1)
        indicators = masks(labels, groups)
        return Evaluation(
            logistic_loss(logits, labels),
            {rule.__name__: sums(torch.sigmoid(SHARPNESS * logits), indicators)},
            {rule.__name__: sums((logits.detach() > 0).float(), indicators)},
        )

    @torch.no_grad()
    def merit(split: str) -> float:
        x, labels, _ = data[split]
        return logistic_loss(model(x).squeeze(1), labels).item()

    @torch.no_grad()
    def values(split: str) -> dict[str, Tensor]:
        x, labels, groups = data[split]
        decisions = (model(x).squeeze(1) > 0).float()
        return {rule.__name__: value(sums(decisions, masks(labels, groups)))}

    @torch.no_grad()
    def details() -> dict[str, float]:
        x, labels, groups = data["test"]
        decisions = (model(x).squeeze(1) > 0).float()
        positive = sums(decisions, by_group(labels, groups))
        gap = (positive[0] / positive[2] - positive[1] / positive[3]).abs().item()
        return {"accuracy": (decisions == labels).float().mean().item(), "parity_gap": gap}

    size = len(rule(torch.zeros(rates)))
    block = Constraint(rule.__name__, inequality, size, 0.01, from_statistics=value)
    batches = row_batches(len(table.train), batch_size, steps, generator)
    return Training(model, [block], batches, evaluate, merit, values, details)


def sums(decisions: Tensor, indicators: Tensor) -> Tensor:
    """Additive statistics: decisions in each group, then rows in each group."""
    return torch.cat([indicators @ decisions, indicators.sum(1)])


def _task(
    name: str,
    kind: str,
    dataset: str,
    masks: Masks,
    rule: Callable[[Tensor], Tensor],
    *,
    inequality: bool = True,
    hidden: list[int],
    batch_size: int,
    steps: int,
) -> Task:
    make = partial(build, dataset, masks, rule, inequality, hidden, batch_size, steps)
    return Task(name, kind, make, steps, 4000 // batch_size, lr=3e-3, sgd_lr=0.03)


TASKS = [
    _task(
        *("adult_parity", "rates", "adult", by_group, parity),
        hidden=[32],
        batch_size=100,
        steps=1000,
    ),
    _task(
        *("adult_opportunity", "rates", "adult", positives_by_group, opportunity),
        hidden=[],
        batch_size=64,
        steps=1240,
    ),
    _task(
        *("compas_missed", "rates", "compas", positives_by_group, missed),
        hidden=[32],
        batch_size=80,
        steps=800,
    ),
    _task(
        *("adult_quota", "rates", "adult", everyone, quota),
        inequality=False,
        hidden=[32],
        batch_size=200,
        steps=600,
    ),
    _task(
        *("short_recall", "short", "adult", positives, recall),
        hidden=[32],
        batch_size=100,
        steps=240,
    ),
]
