"""DeepXDE with the torch backend: boundary and initial losses become constraints.

model.compile("adam", lr=1e-3)
optimizer = constrain(model, total_steps=10000)
model.train(iterations=10000)
print(optimizer.report())

No loss weights are needed: each condition has a multiplier. Set DDE_BACKEND=pytorch first.
"""

from typing import Any

import torch
from torch import Tensor

from torch_powalm.integrations.wrapped_optimizer import import_engine
from torch_powalm.training.optimizer import PowerALMOptimizer
from torch_powalm.training.registry import ConstraintRegistry


def constrain(
    model: Any, constraints: ConstraintRegistry | None = None, **settings: Any
) -> PowerALMOptimizer:
    """Train a compiled DeepXDE model under its boundary and initial conditions.

    The loss is the sum of the equation's losses. The root of the mean square of each condition is a
    constraint named `condition_0`, `condition_1` and so on, in the order of DeepXDE's list.

    Args:
        model: a `deepxde.Model` on a `deepxde.data.PDE` or `TimePDE`, compiled with a torch
            optimizer that takes single steps, such as "adam".
        constraints: further constraints on the parameters; None for none.
        **settings: arguments of PowerALMOptimizer, such as `total_steps`.

    Returns:
        The optimizer, which replaces the model's.
    """
    engine = import_engine("deepxde", "deepxde")
    if engine.backend.backend_name != "pytorch":
        raise ValueError(f"backend must be pytorch, got {engine.backend.backend_name!r}")
    if not isinstance(getattr(model, "opt", None), torch.optim.Optimizer):
        raise ValueError("model must be compiled with a torch optimizer first, got none")
    if isinstance(model.opt, torch.optim.LBFGS):
        raise ValueError('model must be compiled with single steps, such as "adam", got LBFGS')
    count = len(getattr(model.data, "bcs", None) or ())
    if not count:
        raise ValueError("model.data must have boundary or initial conditions, got none")
    registry = ConstraintRegistry() if constraints is None else constraints
    regularizer: Any = getattr(model.net, "regularizer", None) or ("none",)
    penalties = int(regularizer[0] == "l1")  # DeepXDE adds it at the end
    names = [f"condition_{i}" for i in range(count)]
    for name in names:
        registry.inequality(name, size=1, latest=True)
    optimizer = PowerALMOptimizer(model.opt, registry, **settings)

    def train_step(inputs: Any, targets: Any, auxiliary_vars: Any) -> None:
        losses = model.outputs_losses_train(inputs, targets, auxiliary_vars)[1]
        first = len(losses) - count - penalties
        conditions = losses[first : first + count]
        values: dict[str, Any] = {
            name: _root(loss) for name, loss in zip(names, conditions, strict=True)
        }
        optimizer.zero_grad()
        objective: Tensor = losses[:first].sum() + losses[first + count :].sum()
        augmented: Any = optimizer.augment(objective, **values)
        augmented.backward()
        optimizer.step()
        if model.lr_scheduler is not None:
            model.lr_scheduler.step()

    model.opt, model.train_step = optimizer, train_step
    return optimizer


def _root(loss: Tensor) -> Tensor:
    """Return the root of a mean square, without its infinite derivative at 0."""
    positive = loss > 0
    return torch.where(positive, torch.where(positive, loss, 1.0).sqrt(), 0.0 * loss).reshape(1)
