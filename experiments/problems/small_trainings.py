"""Small constrained trainings: model, constraints and batches, built from a generator."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from torch_powalm import ConstraintRegistry, DualRecord, PowerALMOptimizer


class Outcome(NamedTuple):
    """Loss on all training data and largest violation."""

    loss: float
    violation: float


class Training(NamedTuple):
    """A constrained training problem, ready to run."""

    params: list[nn.Parameter]
    constraints: ConstraintRegistry
    steps: int  # per epoch
    step: Callable[[int, PowerALMOptimizer], Tensor]  # augmented loss of the k-th batch
    outcome: Callable[[], Outcome]


def digits() -> tuple[Tensor, Tensor]:
    """scikit-learn's 1,797 images of 8 × 8 pixels."""
    data = load_digits()
    return torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)


def orthonormal(generator: torch.Generator) -> Training:
    """Classifier whose first layer has 32 orthonormal rows: 528 equalities of parameters."""
    x, target = digits()
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    initialize(model, generator)
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
    """Small classifier with no class loss above 0.35: 10 inequalities of the batch."""
    x, target = digits()
    x = x[:, ::2]  # half of the pixels, so that the bound is active
    model = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10))
    initialize(model, generator)
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
    initialize(model, generator)
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


def initialize(model: nn.Module, generator: torch.Generator) -> None:
    """Draw the weights from the generator, so that a seed fixes the run."""
    with torch.no_grad():
        for p in model.parameters():
            fan_in = p.shape[-1]
            p.copy_(torch.randn(p.shape, generator=generator) / math.sqrt(fan_in))


def train(
    training: Training, optimizer: PowerALMOptimizer, epochs: int
) -> Iterator[tuple[Outcome, DualRecord]]:
    """Train, and yield the outcome and the multiplier update of every epoch."""
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for k in range(training.steps):
            optimizer.zero_grad()
            training.step(k, optimizer).backward()
            optimizer.step()
        record = optimizer.update_multipliers()
        schedule.step()
        yield training.outcome(), record
