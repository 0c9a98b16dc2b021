"""Rates of a classifier's decisions on Adult and COMPAS, judged on hard decisions.

The gradient comes from the proxy sigmoid(8 logit). Each constraint is a function of sums over the
batch: decisions in a group, and rows in the group. A batch without a group gives 0/0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as logistic_loss

from experiments.constraint_bench.networks import mlp, row_batches
from experiments.constraint_bench.task import Constraint, Evaluation, Task, Training
from experiments.data.tabular import TableSource

SHARPNESS = 8.0
Masks = Callable[[Tensor, Tensor], Tensor]  # labels and groups to indicators, one row for each rate
Rule = Callable[[Tensor], Tensor]  # rates to values of the constraint


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


@dataclass(frozen=True)
class RateTraining:
    """Builds a classifier under a rule on rates.

    Args:
        dataset: "adult" or "compas".
        masks: the groups whose rates the rule takes.
        rule: maps rates to the values of the constraint; its name is the block's.
        steps: length of a run.
        batch_size: rows of a batch.
        hidden: number of hidden units; None for a linear model.
        inequality: whether the rule's values must be at most 0 rather than equal to 0.
    """

    dataset: str
    masks: Masks
    rule: Rule
    steps: int
    batch_size: int = 100
    hidden: int | None = 32
    inequality: bool = True

    def __call__(self, generator: torch.Generator) -> Training:
        """Build the training."""
        table = TableSource(self.dataset).load()
        data = {
            "train": (table.train, table.train_labels, table.train_groups),
            "test": (table.test, table.test_labels, table.test_groups),
        }
        inner = [] if self.hidden is None else [self.hidden]
        model = mlp([table.train.shape[1], *inner, 1], nn.ReLU, generator)
        name = self.rule.__name__

        def evaluate(rows: Tensor) -> Evaluation:
            x, labels, groups = (column[rows] for column in data["train"])
            logits, masks = model(x).squeeze(1), self.masks(labels, groups)
            proxy = sums(torch.sigmoid(SHARPNESS * logits), masks)
            strict = sums((logits.detach() > 0).float(), masks)
            return Evaluation(logistic_loss(logits, labels), {name: proxy}, {name: strict})

        @torch.no_grad()
        def merit(split: str) -> float:
            x, labels, _ = data[split]
            return logistic_loss(model(x).squeeze(1), labels).item()

        @torch.no_grad()
        def values(split: str) -> dict[str, Tensor]:
            x, labels, groups = data[split]
            return {name: self._value(sums(decisions(model, x), self.masks(labels, groups)))}

        size = len(self._value(torch.ones(2 * len(self.masks(*data["train"][1:])))))
        block = Constraint(name, self.inequality, size, 0.01, from_statistics=self._value)
        batches = row_batches(len(table.train), self.batch_size, self.steps, generator)
        details = partial(accuracy_and_gap, model, *data["test"])
        return Training(model, [block], batches, evaluate, merit, values, details)

    def _value(self, statistics: Tensor) -> Tensor:
        positive, rows = statistics.chunk(2)
        return self.rule(positive / rows)


@torch.no_grad()
def accuracy_and_gap(
    model: nn.Module, x: Tensor, labels: Tensor, groups: Tensor
) -> dict[str, float]:
    """Accuracy, and the difference between the groups' shares of positive decisions."""
    decided = decisions(model, x)
    positive, rows = sums(decided, by_group(labels, groups)).chunk(2)
    gap = (positive / rows).diff().abs().item()
    return {"accuracy": (decided == labels).float().mean().item(), "parity_gap": gap}


def decisions(model: nn.Module, x: Tensor) -> Tensor:
    """1 where the classifier decides for the positive class, else 0."""
    return (model(x).squeeze(1) > 0).float()


def sums(decided: Tensor, masks: Tensor) -> Tensor:
    """Additive statistics: positive decisions in each group, then rows in each group."""
    return torch.cat([masks @ decided, masks.sum(1)])


def _task(name: str, kind: str, build: RateTraining) -> Task:
    return Task(name, kind, build, build.steps, 4000 // build.batch_size, lr=3e-3, sgd_lr=0.03)


TASKS = [
    _task("adult_parity", "rates", RateTraining("adult", by_group, parity, 1000)),
    _task(
        *("adult_opportunity", "rates"),
        RateTraining("adult", positives_by_group, opportunity, 1240, batch_size=64, hidden=None),
    ),
    _task(
        *("compas_missed", "rates"),
        RateTraining("compas", positives_by_group, missed, 800, batch_size=80),
    ),
    _task(
        *("adult_quota", "rates"),
        RateTraining("adult", everyone, quota, 600, batch_size=200, inequality=False),
    ),
    _task("short_recall", "short", RateTraining("adult", positives, recall, 240)),
]
