"""cooper-optim: Lagrangian, augmented Lagrangian, and nuPI.

Recommended: the rates of its documentation, 1e-2 for the multipliers (README), a penalty
coefficient of 1, and Kp = 10 for nuPI (maximum-entropy tutorial). Multipliers follow the strict
values where a task has them.
"""

from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from experiments import cooper_adapter
from experiments.constraint_bench.method import Base, evaluate
from experiments.constraint_bench.task import Batch, Training


@dataclass(frozen=True)
class Cooper:
    """Simultaneous updates of parameters and multipliers at each step.

    Args:
        dual_lr: rate of the multipliers.
        penalty: coefficient of the augmented Lagrangian; None for the Lagrangian.
        proportional: gain of nuPI; None for gradient ascent.
    """

    dual_lr: float = 1e-2
    penalty: float | None = None
    proportional: float | None = None

    def __call__(self, training: Training, base: Base) -> "CooperStep":
        """A training in progress."""
        primal = base(training.model.parameters())

        def state(batch: Batch) -> cooper_adapter.State:
            loss, values, strict = evaluate(training, batch)
            return cooper_adapter.State(loss, values, strict)

        blocks = [cooper_adapter.Block(c.size, c.inequality) for c in training.constraints]
        roll = cooper_adapter.build(
            state,
            blocks,
            primal,
            dual_lr=self.dual_lr,
            penalty=self.penalty,
            proportional=self.proportional,
        ).roll
        return CooperStep(primal, roll)


@dataclass
class CooperStep:
    """Steps by cooper's `roll`."""

    optimizer: Optimizer
    roll: Any

    def step(self, batch: Batch) -> None:
        """Make one step."""
        self.roll(compute_cmp_state_kwargs={"batch": batch})

    def end_epoch(self) -> None:
        """Nothing to close."""


SETTINGS = {
    "cooper": {
        "recommended": Cooper(),
        "dual 1e-3": Cooper(1e-3),
        "dual 0.1": Cooper(0.1),
        "dual 1": Cooper(1.0),
    },
    "cooper augmented": {
        "recommended": Cooper(1e-2, penalty=1.0),
        "dual 0.1, penalty 1": Cooper(0.1, penalty=1.0),
        "dual 0.1, penalty 10": Cooper(0.1, penalty=10.0),
        "dual 1, penalty 10": Cooper(1.0, penalty=10.0),
    },
    "cooper nuPI": {
        "recommended": Cooper(1e-2, proportional=10.0),
        "dual 0.1, Kp 1": Cooper(0.1, proportional=1.0),
        "dual 0.1, Kp 10": Cooper(0.1, proportional=10.0),
        "dual 1, Kp 1": Cooper(1.0, proportional=1.0),
    },
}
