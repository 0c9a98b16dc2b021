"""Trial: a training under one constraint of the zoo, and how it ends in given units."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torch_powalm import ConstraintRegistry, PowerALMOptimizer, ProxyValue

Values = dict[str, Any]


class Units(NamedTuple):
    """Factors that stand for other units of the loss and of the constraint."""

    loss: float = 1.0
    constraint: float = 1.0


UNIT_SYSTEMS = {"natural": Units(), "other": Units(loss=1e3, constraint=1e-2)}


@dataclass(frozen=True)
class Trial:
    """A training that is ready to start.

    Args:
        model: the model.
        batches: one item per step.
        evaluate: maps a batch to the loss and what `augment` takes.
        violation: largest violation on the training data, in the units of the entry, measured
            without the code of the zoo.
        tolerance: violation that counts as met.
        lr: learning rate of Adam.
    """

    model: nn.Module
    batches: list[Any]
    evaluate: Callable[[Any], tuple[Tensor, Values]]
    violation: Callable[[], float]
    tolerance: float
    lr: float = 3e-3


Build = Callable[[ConstraintRegistry, torch.Generator], Trial]


class Ending(NamedTuple):
    """Violation before and after a training, and seconds per step."""

    before: float
    after: float
    tolerance: float
    seconds: float

    @property
    def feasible(self) -> bool:
        """Whether the constraint is met at the end."""
        return self.after <= self.tolerance


def run(build: Build, units: Units, seed: int = 0) -> Ending:
    """Train with nothing set, in the given units."""
    constraints = ConstraintRegistry()
    trial = build(constraints, torch.Generator().manual_seed(seed))
    rescale(constraints, units.constraint)
    base = torch.optim.Adam(trial.model.parameters(), lr=trial.lr)
    optimizer = PowerALMOptimizer(base, constraints, total_steps=len(trial.batches))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(trial.batches))
    before = trial.violation()
    start = time.perf_counter()
    for batch in trial.batches:
        optimizer.zero_grad()
        loss, values = trial.evaluate(batch)
        loss = units.loss * loss
        if values:
            loss = optimizer.augment(loss, **in_units(constraints, values, units.constraint))
        loss.backward()
        optimizer.step()
        schedule.step()
    seconds = (time.perf_counter() - start) / len(trial.batches)
    return Ending(before, trial.violation(), trial.tolerance, seconds)


def rescale(constraints: ConstraintRegistry, factor: float) -> None:
    """Multiply every constraint by a factor, where it is a function."""
    if factor == 1.0:
        return
    for name, block in constraints.blocks.items():
        fields = {
            field: _scaled(getattr(block, field), factor)
            for field in ("fn", "from_statistics")
            if getattr(block, field) is not None
        }
        constraints.blocks[name] = replace(block, **fields)


def in_units(constraints: ConstraintRegistry, values: Values, factor: float) -> Values:
    """Multiply the values that are not statistics."""
    return {
        name: value
        if constraints.blocks[name].from_statistics is not None
        else (factor * value[0], value[1])
        for name, value in values.items()
    }


def _scaled(fn: Callable[..., Tensor], factor: float) -> Callable[..., Tensor]:
    return lambda *arguments: factor * fn(*arguments)


def strict(value: Any) -> Any:
    """What multipliers and reports use."""
    return value.strict if isinstance(value, ProxyValue) else value


def excess(values: Iterable[float]) -> float:
    """Largest positive value, or 0."""
    return max(0.0, *(float(v) for v in values), 0.0)
