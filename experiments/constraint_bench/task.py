"""A constrained training that every method runs in the same way, and its units.

    task = TASKS["adult_parity"]
    training = in_units(task.build(torch.Generator().manual_seed(0)), UNITS["constraints_1e-3"])

A training gives the methods values in the chosen units. What is reported of it, `merit` and
`values`, is always in the task's own units.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torch_powalm import ConstraintRegistry

Batch = Any
BatchValue = Tensor | tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Constraint:
    """A named block of constraints, A = 0 or, if `inequality`, B ≤ 0.

    Args:
        name: Python identifier.
        inequality: whether the values must be at most 0 rather than equal to 0.
        size: number of entries.
        tolerance: largest violation of an entry that counts as feasible, in the task's units.
        fn: function of the parameters; None for a block whose value comes with the batch.
        from_statistics: for a batch block, maps additive statistics to its value.
    """

    name: str
    inequality: bool
    size: int
    tolerance: float
    fn: Callable[[], Tensor] | None = None
    from_statistics: Callable[[Tensor], Tensor] | None = None

    def violation(self, value: Tensor) -> float:
        """The largest violation of an entry; infinite if an entry is not finite."""
        excess = value.clamp(min=0) if self.inequality else value.abs()
        return excess.max().item() if bool(value.isfinite().all()) else float("inf")


class Evaluation(NamedTuple):
    """Loss and batch blocks of one batch.

    Args:
        loss: with its graph.
        values: by name, as `PowerALMOptimizer.augment` takes them: a tensor, (tensor, count), or
            additive statistics.
        strict: true values of blocks whose `values` are differentiable proxies.
    """

    loss: Tensor
    values: dict[str, BatchValue]
    strict: dict[str, BatchValue]


@dataclass(frozen=True)
class Training:
    """A fresh model with everything that is needed to train and to judge it.

    Args:
        model: its parameters are trained.
        constraints: the blocks.
        batches: one for each step.
        evaluate: loss and batch blocks of a batch.
        merit: figure of merit on "train" or "test" data, lower is better.
        values: strict values of all blocks on "train" or "test" data, in the task's units.
        details: further numbers that published results are compared with, by name.
    """

    model: nn.Module
    constraints: Sequence[Constraint]
    batches: Sequence[Batch]
    evaluate: Callable[[Batch], Evaluation]
    merit: Callable[[str], float]
    values: Callable[[str], dict[str, Tensor]]
    details: Callable[[], dict[str, float]] = dict

    def registry(self) -> ConstraintRegistry:
        """The blocks, as PowerALMOptimizer takes them."""
        registry = ConstraintRegistry()
        for c in self.constraints:
            register: Any = registry.inequality if c.inequality else registry.equality
            if c.fn is not None:
                register(c.name, c.fn)
            else:
                register(c.name, size=c.size, from_statistics=c.from_statistics)
        return registry

    @torch.no_grad()
    def violations(self, split: str) -> dict[str, float]:
        """Largest violation of each block on "train" or "test" data, in the task's units."""
        values = self.values(split)
        return {c.name: c.violation(values[c.name]) for c in self.constraints}

    def excess(self, split: str) -> float:
        """Largest violation over its tolerance; feasible if at most 1."""
        found = self.violations(split)
        return max(found[c.name] / c.tolerance for c in self.constraints)


@dataclass(frozen=True)
class Task:
    """A training problem; lr, schedule (a cosine to 0) and length are the same for all methods.

    Args:
        name: of the task.
        kind: tasks of a kind are divided evenly between development and judgment.
        build: builds the training from a generator; equal seeds give equal trainings.
        steps: length of a run.
        steps_per_epoch: steps after which a method may close an epoch.
        lr: learning rate of Adam.
        sgd_lr: learning rate of SGD with momentum 0.9.
        resolution: regret is (merit − best) / max(best, resolution), so that differences far below
            it do not count; 0 if the ratio itself is meaningful.
    """

    name: str
    kind: str
    build: Callable[[torch.Generator], Training]
    steps: int
    steps_per_epoch: int
    lr: float
    sgd_lr: float
    resolution: float = 0.0


class Units(NamedTuple):
    """Factors of all constraint values and of the loss."""

    constraints: float = 1.0
    loss: float = 1.0


UNITS = {
    "natural": Units(),
    "constraints_1e-3": Units(constraints=1e-3),
    "constraints_1e-2": Units(constraints=1e-2),
    "constraints_1e2": Units(constraints=1e2),
    "constraints_1e3": Units(constraints=1e3),
    "loss_1e-2": Units(loss=1e-2),
    "loss_1e2": Units(loss=1e2),
}


def in_units(training: Training, units: Units) -> Training:
    """The same training with values and loss multiplied; what is reported stays as it was."""
    if units == Units():
        return training

    def evaluate(batch: Batch) -> Evaluation:
        loss, values, strict = training.evaluate(batch)
        by_name = {c.name: c for c in training.constraints}
        parts = [
            {name: _scaled(by_name[name], value, units.constraints) for name, value in part.items()}
            for part in (values, strict)
        ]
        return Evaluation(units.loss * loss, *parts)

    constraints = [_scaled_block(c, units.constraints) for c in training.constraints]
    return replace(training, constraints=constraints, evaluate=evaluate)


def _scaled(constraint: Constraint, value: BatchValue, factor: float) -> BatchValue:
    if constraint.from_statistics is not None:
        return value  # statistics keep their units, their function is scaled
    return (factor * value[0], value[1]) if isinstance(value, tuple) else factor * value


def _scaled_block(constraint: Constraint, factor: float) -> Constraint:
    """The block in other units; its tolerance stays in the task's units, as reported values do."""
    fn, from_statistics = constraint.fn, constraint.from_statistics
    return replace(
        constraint,
        fn=None if fn is None else lambda: factor * fn(),
        from_statistics=None if from_statistics is None else lambda s: factor * from_statistics(s),
    )
