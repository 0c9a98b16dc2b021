"""A method: a function that builds a step for a training, with the base optimizer of the task."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from experiments.constraint_bench.task import Batch, Constraint, Task, Training


class Stepper(Protocol):
    """A training in progress; the runner calls its methods and the schedule of its optimizer."""

    optimizer: Optimizer

    def step(self, batch: Batch) -> None:
        """Make one step."""

    def end_epoch(self) -> None:
        """Close an epoch."""


@dataclass(frozen=True)
class Base:
    """The optimizer that every method uses: Adam, or SGD with momentum, with the task's rate."""

    kind: str
    lr: float
    steps: int
    steps_per_epoch: int

    def __call__(self, params: object, **options: object) -> Optimizer:
        """The optimizer of some parameters."""
        if self.kind == "adam":
            return torch.optim.Adam(params, lr=self.lr, **options)  # type: ignore[arg-type]
        return torch.optim.SGD(params, lr=self.lr, momentum=0.9, **options)  # type: ignore[arg-type]


def base_of(task: Task, kind: str) -> Base:
    """The base optimizer of a task; kind is "adam" or "sgd"."""
    if kind not in ("adam", "sgd"):
        raise ValueError(f"base must be adam or sgd, got {kind!r}")
    return Base(kind, task.lr if kind == "adam" else task.sgd_lr, task.steps, task.steps_per_epoch)


Method = Callable[[Training, Base], Stepper]


@dataclass
class PlainStep:
    """Steps on a scalar made from loss and constraint values, for methods without epochs.

    Args:
        training: the training.
        optimizer: of the parameters, and of whatever else the scalar depends on.
        total: maps the loss and one vector for each block to a scalar.
    """

    training: Training
    optimizer: Optimizer
    total: Callable[[Tensor, list[Tensor]], Tensor]

    def step(self, batch: Batch) -> None:
        """Differentiate the scalar and step."""
        self.optimizer.zero_grad()
        loss, vectors, _ = evaluate(self.training, batch)
        self.total(loss, vectors).backward()
        self.optimizer.step()

    def end_epoch(self) -> None:
        """Nothing to close."""


def evaluate(training: Training, batch: Batch) -> tuple[Tensor, list[Tensor], list[Tensor | None]]:
    """Loss, the vector of each block, and its strict values where they differ (else None)."""
    loss, values, strict = training.evaluate(batch)
    vectors, exact = [], []
    for c in training.constraints:
        vectors.append(c.fn() if c.fn is not None else _vector(c, values[c.name]))
        exact.append(_vector(c, strict[c.name]) if c.name in strict else None)
    return loss, vectors, exact


def _vector(constraint: Constraint, value: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    """The value in this batch; absent classes and groups count as exactly satisfied."""
    if isinstance(value, tuple):
        return torch.where(value[1] > 0, value[0], 0.0)
    if constraint.from_statistics is None:
        return value
    found = constraint.from_statistics(value)
    return found if bool(found.isfinite().all()) else torch.zeros_like(found)
