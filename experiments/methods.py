"""Ways to train under a constraint: ours, and what one would do instead.

A method's `start` is handed the task, the network and its Adam, and says how a step is made. All
of them see the same task: its loss, the smooth proxy of its constraint and the strict value.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from experiments.network import TwoLayer
from torch_powalm import ConstraintRegistry, PowerALMOptimizer
from torch_powalm.lightning import PowerALMCallback


class Task(Protocol):
    """A loss with a constraint, as the files of experiments/problems define it."""

    tolerance: float
    inequality: bool
    size: int

    def tightened(self, margin: float) -> "Task": ...  # noqa: D102
    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor: ...  # noqa: D102
    def usual_loss(self, outputs: Tensor, labels: Tensor) -> Tensor: ...  # noqa: D102
    def register(self, constraints: ConstraintRegistry, network: TwoLayer) -> None: ...  # noqa: D102
    def batch_values(  # noqa: D102
        self, outputs: Tensor, labels: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]: ...
    def proxy(self, network: TwoLayer, outputs: Tensor, labels: Tensor) -> Tensor: ...  # noqa: D102
    def strict(self, network: TwoLayer, outputs: Tensor, labels: Tensor) -> Tensor: ...  # noqa: D102


class Started(NamedTuple):
    """A method at work.

    Args:
        optimizer: for Lightning and the schedule of the learning rate.
        loss: of a batch, for backward; a method that steps by itself has made its step.
        callbacks: for the trainer.
        steps_itself: whether `loss` calls backward and step.
    """

    optimizer: Optimizer
    loss: Callable[[Tensor, Tensor], Tensor]
    callbacks: Sequence[Any] = ()
    steps_itself: bool = False


class Method(Protocol):
    """What the config group `method` makes."""

    def candidates(self) -> dict[str, "Method"]: ...  # noqa: D102
    def start(self, task: Task, network: TwoLayer, adam: Optimizer) -> Started: ...  # noqa: D102


class _Single:
    """A method without a setting that is chosen on validation data."""

    def candidates(self: Any) -> dict[str, Any]:
        """Itself."""
        return {"": self}


@dataclass(frozen=True)
class Grid:
    """A method with settings that are chosen on validation data.

    Args:
        method: makes it from the settings.
        choices: the values of each setting; all combinations are candidates.
    """

    method: Callable[..., Any]
    choices: dict[str, list[Any]]

    def candidates(self) -> dict[str, Any]:
        """The methods by their settings."""
        settings = [
            dict(zip(self.choices, values, strict=True))
            for values in product(*self.choices.values())
        ]
        return {
            ", ".join(f"{name} {value}" for name, value in chosen.items()): self.method(**chosen)
            for chosen in settings
        }


@dataclass(frozen=True)
class PowerALM(_Single):
    """PowerALMOptimizer with PowerALMCallback.

    Args:
        nu: exponent of the penalty, in (0, 1].
        beta_1: first penalty, > 0.
        updates: of PowerALMCallback, when the multipliers move.
        margin: by which training is stricter than the task.
    """

    nu: float
    updates: dict[str, int]
    beta_1: float = 0.1
    margin: float = 0.0

    def start(self, task: Task, network: TwoLayer, adam: Optimizer) -> Started:
        """Name the constraint, wrap the optimizer."""
        task = task.tightened(self.margin)
        constraints = ConstraintRegistry()
        task.register(constraints, network)
        optimizer = PowerALMOptimizer(adam, constraints, nu=self.nu, beta_1=self.beta_1)

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            outputs = network(images)
            values, strict = task.batch_values(outputs, labels)
            plain = task.loss(outputs, labels)
            return optimizer.augment(plain, strict=strict, **values) if values else plain

        return Started(optimizer, loss, [PowerALMCallback(**self.updates)])


@dataclass(frozen=True)
class Unconstrained(_Single):
    """The usual training, which does not know of the constraint."""

    def start(self, task: Task, network: TwoLayer, adam: Optimizer) -> Started:
        """Adam on the usual loss."""
        return Started(adam, lambda images, labels: task.usual_loss(network(images), labels))


@dataclass(frozen=True)
class Penalty(_Single):
    """A fixed quadratic penalty: loss + weight/2 · ‖(A, max(B, 0))‖².

    Args:
        weight: of the penalty, > 0.
    """

    weight: float

    def start(self, task: Task, network: TwoLayer, adam: Optimizer) -> Started:
        """Adam on the penalised loss."""

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            outputs = network(images)
            value = task.proxy(network, outputs, labels)
            violated = value.clamp(min=0) if task.inequality else value
            return task.loss(outputs, labels) + self.weight / 2 * violated.square().sum()

        return Started(adam, loss)


@dataclass(frozen=True)
class Cooper(_Single):
    """cooper-optim as its documentation sets it up.

    Alternating steps, the multipliers first, by SGD. The penalty of the augmented Lagrangian is
    raised by 0.01 at each step that violates by more than 1e-3 and, for equalities, starts at 0, as
    in its tutorial; for inequalities, where its formula divides by it, it starts at 1.

    Args:
        augmented: the augmented Lagrangian instead of the Lagrangian.
        dual_lr: step size of the multipliers.
        margin: by which training is stricter than the task.
    """

    augmented: bool
    dual_lr: float = 1e-2
    margin: float = 0.0

    def start(self, task: Task, network: TwoLayer, adam: Optimizer) -> Started:
        """Build cooper's problem and optimizer; its roll() makes a whole step."""
        try:
            import cooper
        except ImportError as error:
            raise ModuleNotFoundError(
                "cooper-optim is missing; pip install 'torch-powalm[benchmarks]' brings it"
            ) from error
        task = task.tightened(self.margin)
        kinds, forms = cooper.ConstraintType, cooper.formulations
        parts = cooper.penalty_coefficients
        first = torch.tensor(1.0 if task.inequality else 0.0)
        penalty = parts.DensePenaltyCoefficient(first) if self.augmented else None
        updater = parts.AdditivePenaltyCoefficientUpdater(1e-2, violation_tolerance=1e-3)

        class Problem(cooper.ConstrainedMinimizationProblem):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.block = cooper.Constraint(
                    constraint_type=kinds.INEQUALITY if task.inequality else kinds.EQUALITY,
                    formulation_type=forms.AugmentedLagrangian if penalty else forms.Lagrangian,
                    multiplier=cooper.multipliers.DenseMultiplier(num_constraints=task.size),
                    penalty_coefficient=penalty,
                )

            def compute_cmp_state(self, images: Tensor, labels: Tensor) -> Any:
                outputs = network(images)
                state = cooper.ConstraintState(
                    violation=task.proxy(network, outputs, labels),
                    strict_violation=task.strict(network, outputs, labels).detach(),
                )
                return cooper.CMPState(
                    loss=task.loss(outputs, labels), observed_constraints={self.block: state}
                )

        problem = Problem()
        optimizer = cooper.optim.AlternatingDualPrimalOptimizer(
            cmp=problem,
            primal_optimizers=adam,
            dual_optimizers=SGD(problem.dual_parameters(), lr=self.dual_lr, maximize=True),
        )

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            roll = optimizer.roll({"images": images, "labels": labels})
            if self.augmented:
                updater.step(roll.cmp_state.observed_constraints)
            made: Tensor = roll.loss
            return made

        return Started(adam, loss, steps_itself=True)
