"""Methods to train under a constraint: ours and the alternatives.

`start` takes the task, the network and its Adam and returns how to make a step. All methods use the
same task: its loss, the smooth proxy of its constraint and the strict value.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple, Protocol

from torch import Tensor
from torch.optim import Optimizer

from experiments import cooper_adapter
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
    """A method that is ready to train.

    Args:
        optimizer: for Lightning and the learning rate schedule.
        loss: loss of a batch, to be differentiated.
        callbacks: for the trainer.
        steps_itself: whether `loss` makes the whole step, with backward and update.
    """

    optimizer: Optimizer
    loss: Callable[[Tensor, Tensor], Tensor]
    callbacks: Sequence[Any] = ()
    steps_itself: bool = False


class Method(Protocol):
    """A method of the config group `method`."""

    def candidates(self) -> dict[str, "Method"]: ...  # noqa: D102
    def start(self, task: Task, network: TwoLayer, adam: Optimizer) -> Started: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """A method, possibly with settings that are chosen on validation data.

    Args:
        choices: values to try for each setting, by name; all combinations are tried.
    """

    choices: dict[str, list[Any]] = field(default_factory=dict)

    def candidates(self: Any) -> dict[str, Any]:
        """The methods to try, by their settings."""
        settings = [
            dict(zip(self.choices, values, strict=True))
            for values in product(*self.choices.values())
        ]
        return {
            ", ".join(f"{name} {value}" for name, value in chosen.items()): replace(
                self, **chosen, choices={}
            )
            for chosen in settings
        }


@dataclass(frozen=True)
class PowerALM(Tuned):
    """PowerALMOptimizer with PowerALMCallback.

    Args:
        nu: exponent of the penalty, in (0, 1].
        beta_1: first penalty, > 0.
        updates: arguments of PowerALMCallback, when the multipliers are updated.
        margin: how much stricter training is than the task.
    """

    nu: float
    updates: dict[str, int]
    beta_1: float = 0.1
    margin: float = 0.0

    def start(self, task: Task, network: TwoLayer, adam: Optimizer) -> Started:
        """Register the constraint, wrap the optimizer."""
        task = task.tightened(self.margin)
        constraints = ConstraintRegistry()
        task.register(constraints, network)
        optimizer = PowerALMOptimizer(adam, constraints, nu=self.nu, beta_1=self.beta_1)
        loss = _augmented(optimizer, task, network)
        return Started(optimizer, loss, [PowerALMCallback(**self.updates)])


@dataclass(frozen=True)
class NothingSet(Tuned):
    """PowerALMOptimizer and PowerALMCallback as they are, with no setting."""

    def start(self, task: Task, network: TwoLayer, adam: Optimizer) -> Started:
        """Register the constraint, wrap the optimizer."""
        constraints = ConstraintRegistry()
        task.register(constraints, network)
        optimizer = PowerALMOptimizer(adam, constraints)
        return Started(optimizer, _augmented(optimizer, task, network), [PowerALMCallback()])


@dataclass(frozen=True)
class Unconstrained(Tuned):
    """The usual training without the constraint."""

    def start(self, task: Task, network: TwoLayer, adam: Optimizer) -> Started:
        """Adam on the usual loss."""
        return Started(adam, lambda images, labels: task.usual_loss(network(images), labels))


@dataclass(frozen=True)
class Penalty(Tuned):
    """A fixed quadratic penalty: loss + weight/2 · ‖(A, max(B, 0))‖².

    Args:
        weight: of the penalty, > 0.
    """

    weight: float = 1.0

    def start(self, task: Task, network: TwoLayer, adam: Optimizer) -> Started:
        """Adam on the penalized loss."""

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            outputs = network(images)
            value = task.proxy(network, outputs, labels)
            violated = value.clamp(min=0) if task.inequality else value
            return task.loss(outputs, labels) + self.weight / 2 * violated.square().sum()

        return Started(adam, loss)


@dataclass(frozen=True)
class Cooper(Tuned):
    """cooper-optim, set up as in its documentation.

    Alternating updates, the multipliers first, by SGD. As in its tutorial, the penalty of the
    augmented Lagrangian grows by 0.01 at each step that violates by more than 1e-3. It starts at 0
    for equalities, as there, and at 1 for inequalities, whose formula divides by it.

    Args:
        augmented: use the augmented Lagrangian instead of the Lagrangian.
        dual_lr: step size of the multipliers.
        margin: how much stricter training is than the task.
    """

    augmented: bool = False
    dual_lr: float = 1e-2
    margin: float = 0.0

    def start(self, task: Task, network: TwoLayer, adam: Optimizer) -> Started:
        """Build cooper's optimizer; its roll() makes a whole step."""
        task = task.tightened(self.margin)
        growth = cooper_adapter.penalty_growth(1e-2, tolerance=1e-3)
        first = 1.0 if task.inequality else 0.0

        def evaluate(images: Tensor, labels: Tensor) -> cooper_adapter.State:
            outputs = network(images)
            strict = task.strict(network, outputs, labels).detach()
            values = task.proxy(network, outputs, labels)
            return cooper_adapter.State(task.loss(outputs, labels), [values], [strict])

        optimizer = cooper_adapter.build(
            evaluate,
            [cooper_adapter.Block(task.size, task.inequality)],
            adam,
            dual_lr=self.dual_lr,
            penalty=first if self.augmented else None,
            alternating=True,
        )

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            roll = optimizer.roll({"images": images, "labels": labels})
            if self.augmented:
                growth.step(roll.cmp_state.observed_constraints)
            made: Tensor = roll.loss
            return made

        return Started(adam, loss, steps_itself=True)


def _augmented(
    optimizer: PowerALMOptimizer, task: Task, network: TwoLayer
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss of a batch with the gradient of the constraint."""

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        outputs = network(images)
        values, strict = task.batch_values(outputs, labels)
        plain = task.loss(outputs, labels)
        return optimizer.augment(plain, strict=strict, **values) if values else plain

    return loss
