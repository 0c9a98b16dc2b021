"""PowerALMOptimizer with nothing set."""

import inspect
from dataclasses import dataclass, field
from typing import Any

from experiments.constraint_bench.method import Base
from experiments.constraint_bench.task import Batch, Training
from torch_powalm import PowerALMOptimizer


@dataclass(frozen=True)
class PowerALM:
    """Wraps the base, and calls `update_multipliers` at the end of each epoch.

    Args:
        options: arguments of PowerALMOptimizer; none for its defaults.
    """

    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, training: Training, base: Base) -> "PowerALMStep":
        """A training in progress."""
        options = dict(self.options)
        if "total_steps" in inspect.signature(PowerALMOptimizer).parameters:
            options = {"total_steps": base.steps, **options}
        parameters = training.model.parameters()
        return PowerALMStep(
            training, PowerALMOptimizer(base(parameters), training.registry(), **options)
        )


@dataclass
class PowerALMStep:
    """The loop of the README."""

    training: Training
    optimizer: PowerALMOptimizer

    def step(self, batch: Batch) -> None:
        """Make one step."""
        self.optimizer.zero_grad()
        loss, values, strict = self.training.evaluate(batch)
        if values:
            loss = self.optimizer.augment(loss, strict=strict or None, **values)
        loss.backward()
        self.optimizer.step()

    def end_epoch(self) -> None:
        """Update the multipliers."""
        self.optimizer.update_multipliers()


SETTINGS = {"powalm": {"recommended": PowerALM()}}
