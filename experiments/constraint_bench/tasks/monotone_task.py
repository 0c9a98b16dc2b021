"""Monotone network on COMPAS: the score rises with offenses and falls with age."""

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as logistic_loss

from experiments.constraint_bench.networks import mlp, row_batches
from experiments.constraint_bench.task import Constraint, Evaluation, Task, Training
from experiments.data.tabular import TableSource

STEP = 0.5  # of a standardized feature
POINTS = 64
SIGNS = {"priors_count": 1.0, "juv_other_count": 1.0, "age": -1.0}


def monotone_compas(generator: torch.Generator) -> Training:
    """192 inequalities: a step of each feature at 64 rows must not move the logit the wrong way."""
    table = TableSource("compas").load()
    data = {
        "train": (table.train, table.train_labels),
        "test": (table.test, table.test_labels),
    }
    model = mlp([table.train.shape[1], 32, 32, 1], nn.Tanh, generator)
    points = {
        split: x[torch.randperm(len(x), generator=generator)[:POINTS]]
        for split, (x, _) in data.items()
    }

    def decrease(split: str, feature: str) -> Tensor:
        x = points[split]
        step = torch.zeros(x.shape[1])
        step[table.features.index(feature)] = STEP * SIGNS[feature]
        drop: Tensor = model(x) - model(x + step)
        return drop.squeeze(1)

    def evaluate(rows: Tensor) -> Evaluation:
        x, labels = data["train"]
        return Evaluation(logistic_loss(model(x[rows]).squeeze(1), labels[rows]), {}, {})

    @torch.no_grad()
    def merit(split: str) -> float:
        x, labels = data[split]
        return logistic_loss(model(x).squeeze(1), labels).item()

    @torch.no_grad()
    def values(split: str) -> dict[str, Tensor]:
        return {feature: decrease(split, feature) for feature in SIGNS}

    blocks = [
        Constraint(feature, True, POINTS, 0.01, fn=lambda f=feature: decrease("train", f))
        for feature in SIGNS
    ]
    return Training(model, blocks, row_batches(4000, 80, 1000, generator), evaluate, merit, values)


TASKS = [Task("monotone_compas", "budgets", monotone_compas, 1000, 50, lr=1e-2, sgd_lr=0.1)]
