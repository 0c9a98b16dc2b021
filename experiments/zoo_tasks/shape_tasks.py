"""Shapes of a risk score on COMPAS, at fixed points and at the points of each batch."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.constraint_bench.networks import mlp, row_batches
from experiments.data.tabular import TableSource
from experiments.zoo_tasks.zoo_task import Build, Trial, Values, excess
from torch_powalm import ConstraintRegistry, zoo

Register = Callable[[ConstraintRegistry, nn.Module, Tensor | None], zoo.Entry]
Violation = Callable[[nn.Module, Tensor], Tensor]
AGE, PRIORS = 0, 1  # columns


def score(
    register: Register,
    violation: Violation,
    sampled: bool,
    constraints: ConstraintRegistry,
    generator: torch.Generator,
    tolerance: float = 0.02,
    steps: int = 200,
) -> Trial:
    """A network whose score has a shape: at 100 fixed rows, or at the rows of each batch."""
    table = TableSource("compas").load()
    x, labels = table.train, table.train_labels
    assert table.features[AGE] == "age"
    assert table.features[PRIORS] == "priors_count"
    model = mlp([x.shape[1], 16, 1], nn.Tanh, generator)
    fixed = x[torch.randperm(len(x), generator=generator)[:100]]
    entry = register(constraints, model, None if sampled else fixed)

    def evaluate(rows: Tensor) -> tuple[Tensor, Values]:
        loss = functional.binary_cross_entropy_with_logits(model(x[rows]).squeeze(1), labels[rows])
        return loss, {entry.name: entry(x[rows])} if sampled else {}

    def largest() -> float:
        found = violation(model, x if sampled else fixed).detach()
        return excess([found.square().mean().sqrt() if sampled else found.max()])

    batches = row_batches(len(x), 100, steps, generator)
    return Trial(model, batches, evaluate, largest, tolerance, lr=1e-2)


def _wrong_slope(model: nn.Module, x: Tensor) -> Tensor:
    """Central differences in double precision."""
    model = model.double()
    step, found = 1e-4, []
    with torch.no_grad():
        for column, sign in ((PRIORS, -1.0), (AGE, 1.0)):
            move = torch.zeros(x.shape[1], dtype=torch.float64)
            move[column] = step
            found.append(sign * (model(x + move) - model(x - move)) / (2 * step))
    model.float()
    return torch.cat(found).clamp(min=0)


@torch.no_grad()
def _above_chord(model: nn.Module, x: Tensor) -> Tensor:
    other = x.clone()
    other[:, AGE] = torch.cat([x[1:, AGE], x[:1, AGE]])
    return (model((x + other) / 2) - (model(x) + model(other)) / 2).clamp(min=0)


@torch.no_grad()
def _outside(model: nn.Module, x: Tensor) -> Tensor:
    z = model(x)
    return torch.maximum(-1 - z, z - 1).clamp(min=0)


def _mirrored(x: Tensor) -> Tensor:
    return torch.cat([-x[:, :1], x[:, 1:]], 1)


@torch.no_grad()
def _asymmetry(model: nn.Module, x: Tensor) -> Tensor:
    return (model(_mirrored(x)) - model(x)).abs()


@torch.no_grad()
def _oddness(model: nn.Module, x: Tensor) -> Tensor:
    return (model(-x) + model(x)).abs()


_SHAPES: dict[str, tuple[Register, Violation]] = {
    "monotone": (
        lambda c, m, p: zoo.monotone(
            c, "monotone", m, increasing=[PRIORS], decreasing=[AGE], points=p
        ),
        _wrong_slope,
    ),
    "convex": (
        lambda c, m, p: zoo.convex(c, "convex", m, features=[AGE], points=p),
        _above_chord,
    ),
    "bounded": (
        lambda c, m, p: zoo.bounded(c, "bounded", m, low=-1.0, high=1.0, points=p),
        _outside,
    ),
    "invariant": (lambda c, m, p: zoo.invariant(c, "same", m, _mirrored, points=p), _asymmetry),
    "equivariant": (
        lambda c, m, p: zoo.equivariant(c, "odd", m, torch.neg, torch.neg, points=p),
        _oddness,
    ),
}
SHAPES: dict[str, Build] = {
    f"{name} ({'sampled' if sampled else 'points'})": partial(
        score, *parts, sampled, steps=400 if name == "invariant" else 200
    )
    for name, parts in _SHAPES.items()
    for sampled in (False, True)
}
