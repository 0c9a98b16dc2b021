"""Constraints on weights, and on the distance to a reference, for small image classifiers."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.constraint_bench.networks import initialize, mlp, pooled_images, row_batches
from experiments.zoo_tasks.zoo_task import Build, Trial, Values, excess
from torch_powalm import ConstraintRegistry, zoo

Array = Any  # numpy.ndarray


class Square(nn.Module):
    """Classifier with a square matrix in the middle."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.read, self.mix = nn.Linear(196, 12), nn.Linear(12, 12, bias=False)
        self.gates, self.classify = zoo.HardConcrete(12, generator=generator), nn.Linear(12, 10)
        initialize(self, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        hidden = torch.tanh(self.mix(torch.tanh(self.read(x))))
        logits: Tensor = self.classify(hidden * self.gates())
        return logits


def weights(
    register: Callable[[ConstraintRegistry, Square], zoo.Entry],
    violation: Callable[[Array, Array], Any],
    tolerance: float,
    constraints: ConstraintRegistry,
    generator: torch.Generator,
    steps: int = 160,
) -> Trial:
    """Fashion-MNIST with a constraint on the weights."""
    x, target = pooled_images("fashion_mnist")["train"]
    model = Square(generator)
    register(constraints, model)

    def evaluate(rows: Tensor) -> tuple[Tensor, Values]:
        return functional.cross_entropy(model(x[rows]), target[rows]), {}

    def largest() -> float:
        mix, read = (layer.weight.detach().double().numpy() for layer in (model.mix, model.read))
        return excess(np.ravel(violation(mix, read)))

    return Trial(model, row_batches(5000, 50, steps, generator), evaluate, largest, tolerance, 1e-2)


def gates(constraints: ConstraintRegistry, generator: torch.Generator) -> Trial:
    """Fashion-MNIST with at most 6 of 12 units."""
    trial = weights(
        lambda c, m: zoo.l0_budget(c, "gates", m.gates, bound=6.0),
        lambda mix, read: [0.0],
        0.0,
        constraints,
        generator,
        steps=480,
    )
    alpha = trial.model.gates.log_alpha

    def count() -> float:  # gates whose stretched value in evaluation mode is above 0
        value = 1.2 / (1 + np.exp(-alpha.detach().double().numpy())) - 0.1
        return excess([(value > 0).sum() - 6])

    return replace(trial, violation=count, tolerance=0.5, lr=5e-2)


def _gram(W: Array) -> Array:
    return np.abs(W @ W.T - np.eye(len(W)))


WEIGHTS: dict[str, Build] = {
    "orthonormal": partial(
        weights,
        lambda c, m: zoo.orthonormal(c, "orthonormal", m.mix),
        lambda mix, read: _gram(mix),
        0.02,
        steps=400,
    ),
    "unit_norm": partial(
        weights,
        lambda c, m: zoo.unit_norm(c, "rows", m.read),
        lambda mix, read: np.abs((read**2).sum(1) - 1),
        0.04,
        steps=500,
    ),
    "symmetric": partial(
        weights,
        lambda c, m: zoo.symmetric(c, "symmetric", m.mix),
        lambda mix, read: np.abs(mix - mix.T),
        0.02,
    ),
    "positive_definite": partial(
        weights,
        lambda c, m: zoo.positive_definite(c, "definite", m.mix, bound=0.1),
        lambda mix, read: 0.1 - np.linalg.eigvalsh((mix + mix.T) / 2),
        0.02,
    ),
    "doubly_stochastic": partial(
        weights,
        lambda c, m: zoo.doubly_stochastic(c, "stochastic", m.mix),
        lambda mix, read: np.concatenate(
            [np.abs(mix.sum(0) - 1), np.abs(mix.sum(1) - 1), -np.ravel(mix)]
        ),
        0.02,
        steps=300,
    ),
    "spectral_norm": partial(
        weights,
        lambda c, m: zoo.spectral_norm(c, "norms", [m.read, m.mix], bound=1.0),
        lambda mix, read: [np.linalg.svd(W, compute_uv=False)[0] - 1 for W in (mix, read)],
        0.02,
    ),
    "lipschitz": partial(
        weights,
        lambda c, m: zoo.lipschitz(c, "lipschitz", [m.read, m.mix], bound=2.0),
        lambda mix, read: [
            np.prod([np.linalg.svd(W, compute_uv=False)[0] for W in (mix, read)]) - 2
        ],
        0.04,
    ),
    "l1_budget": partial(
        weights,
        lambda c, m: zoo.l1_budget(c, "budget", [m.read, m.mix], bound=60.0),
        lambda mix, read: [np.abs(mix).sum() + np.abs(read).sum() - 60],
        0.6,
    ),
    "l0_budget": gates,
}


def fine_tuning(kind: str, constraints: ConstraintRegistry, generator: torch.Generator) -> Trial:
    """From MNIST to Fashion-MNIST without moving far from what the first training gave."""
    old, new = (pooled_images(name)["train"] for name in ("mnist", "fashion_mnist"))
    model = mlp([196, 24, 10], nn.ReLU, generator)
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    for rows in row_batches(5000, 100, 100, generator):
        adam.zero_grad()
        functional.cross_entropy(model(old[0][rows]), old[1][rows]).backward()
        adam.step()
    reference = zoo.frozen_copy(model)
    inner, goal = model[:2], reference[:2]
    if kind == "feature_distance":
        entry = zoo.feature_distance(constraints, "near", bound=0.2)
    else:
        entry = getattr(zoo, kind)(constraints, "near", reference, bound=0.1)

    def evaluate(rows: Tensor) -> tuple[Tensor, Values]:
        x = old[0][rows]
        loss = functional.cross_entropy(model(new[0][rows]), new[1][rows])
        if kind == "feature_distance":
            return loss, {"near": entry(inner(x), goal(x))}
        return loss, {"near": entry(model(x), x)}

    @torch.no_grad()
    def distance() -> float:
        z, r = (net(old[0]).double() for net in (model, reference))
        p, q = (np.exp(v.log_softmax(1).numpy()) for v in (z, r))
        if kind == "target_kl":
            return excess([(p * np.log(p / q)).sum(1).mean() - 0.1])
        if kind == "forgetting":
            return excess([(q * np.log(q / p)).sum(1).mean() - 0.1])
        a, b, bound = (z, r, 0.1)
        if kind == "feature_distance":
            a, b, bound = inner(old[0]), goal(old[0]), 0.2
        a, b = a.double().numpy(), b.double().numpy()
        return excess([np.linalg.norm(a - b) / np.linalg.norm(b) - bound])

    return Trial(model, row_batches(5000, 100, 160, generator), evaluate, distance, 0.01, 3e-3)


FIDELITY: dict[str, Build] = {
    kind: partial(fine_tuning, kind)
    for kind in ("target_kl", "forgetting", "output_distance", "feature_distance")
}
