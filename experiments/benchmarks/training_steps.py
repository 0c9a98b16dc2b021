"""Training steps with constraints: `method(task, batch)` returns a function that makes a step.

If `batch` is true, the constraints are the class losses of the batch, else the task's own
functions. Ours and the floor update the multipliers every EPOCH steps, the others at every step, as
their methods prescribe.
"""

from collections.abc import Callable, Sequence
from types import ModuleType

import torch
from torch import Tensor

import torch_powalm
from experiments import cooper_adapter
from experiments.benchmarks.interleaved import Step
from experiments.benchmarks.training_tasks import Task

EPOCH = 50
MANY = 1000  # constraints; mdmm is not run with more


def adam(task: Task) -> torch.optim.Optimizer:
    """The optimizer of every method."""
    return torch.optim.Adam(task.params, lr=1e-4)


def plain(task: Task, batch: bool) -> Step:
    """Unconstrained training."""
    optimizer = adam(task)

    def step() -> None:
        optimizer.zero_grad()
        task.loss().backward()
        optimizer.step()

    return step


def floor(task: Task, batch: bool) -> Step:
    """The augmented Lagrangian written by hand, in the cheapest way we know."""
    optimizer, beta, count = adam(task), 1.0, 0
    functions = task.functions()
    y = torch.zeros(10 if batch else sum(len(fn()) for fn in functions))

    def step() -> None:
        nonlocal y, beta, count
        optimizer.zero_grad()
        if batch:
            losses = task.losses()
            A = task.class_losses(losses)
            loss = losses.mean() + torch.relu(y + beta * A).square().sum() / (2 * beta)
        else:
            A = functions[0]() if len(functions) == 1 else torch.cat([fn() for fn in functions])
            loss = task.loss() + y @ A + beta / 2 * (A @ A)
        loss.backward()
        optimizer.step()
        count += 1
        if count % EPOCH == 0:
            y = y + beta * A.detach()
            y = y.clamp(min=0) if batch else y
            beta *= 1.1

    return step


def wrapped(
    task: Task, batch: bool, nu: float, package: ModuleType = torch_powalm
) -> torch_powalm.PowerALMOptimizer:
    """PowerALMOptimizer with the constraints of a task, of this or another version."""
    constraints = package.ConstraintRegistry()
    if batch:
        constraints.inequality("class_loss", size=10)
    else:
        for i, fn in enumerate(task.functions()):
            constraints.equality(f"block_{i}", fn)
    optimizer: torch_powalm.PowerALMOptimizer = package.PowerALMOptimizer(
        adam(task), constraints, nu=nu, beta_1=1.0, omega=1.1
    )
    return optimizer


def ours(nu: float, package: ModuleType = torch_powalm) -> Callable[[Task, bool], Step]:
    """PowerALMOptimizer, of this or another version of the package."""

    def build(task: Task, batch: bool) -> Step:
        return step_of(wrapped(task, batch, nu, package), task, batch)

    return build


def step_of(optimizer: torch_powalm.PowerALMOptimizer, task: Task, batch: bool) -> Step:
    """A step of the wrapped optimizer, with its multiplier updates."""

    def step() -> None:
        optimizer.zero_grad()
        if batch:
            losses = task.losses()
            loss = optimizer.augment(losses.mean(), class_loss=task.class_losses(losses))
        else:
            loss = task.loss()
        loss.backward()
        optimizer.step()
        if optimizer.should_update(steps=EPOCH):
            optimizer.update_multipliers()

    return step


def cooper(task: Task, batch: bool) -> Step:
    """cooper-optim's AugmentedLagrangian with simultaneous updates."""
    functions = task.functions()
    sizes = [10] if batch else [len(fn()) for fn in functions]
    optimizer = cooper_adapter.build(
        lambda: cooper_adapter.State(*_evaluate(task, functions, batch)),
        [cooper_adapter.Block(size, batch) for size in sizes],
        adam(task),
        dual_lr=1e-3,
        penalty=1.0,
    )
    return lambda: optimizer.roll() and None


def humancompatible(task: Task, batch: bool) -> Step:
    """humancompatible-train's ALM."""
    from humancompatible.train.dual_optim import ALM

    functions, optimizer = task.functions(), adam(task)
    m = 10 if batch else sum(len(fn()) for fn in functions)
    dual = ALM(m=m, lr=1e-3, penalty=1.0, is_ineq=batch)

    def step() -> None:
        loss, blocks = _evaluate(task, functions, batch)
        values = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
        optimizer.zero_grad()
        dual.forward_update(loss, values).backward()
        optimizer.step()

    return step


def modified_differential(task: Task, batch: bool) -> Step | None:
    """The package mdmm, with one object for each constraint that views a shared vector."""
    import mdmm

    functions = task.functions()
    now = [torch.zeros(10)] if batch else [fn() for fn in functions]
    if sum(map(len, now)) > MANY:
        return None
    kind = mdmm.MaxConstraintHard if batch else mdmm.EqConstraint
    module = mdmm.MDMM(
        kind(lambda i=i, j=j: now[i][j], 0.0)  # type: ignore[misc]
        for i, block in enumerate(now)
        for j in range(len(block))
    )
    optimizer = module.make_optimizer(task.params, optimizer=torch.optim.Adam, lr=1e-4)

    def step() -> None:
        loss, now[:] = _evaluate(task, functions, batch)
        optimizer.zero_grad()
        module(loss).value.backward()
        optimizer.step()

    return step


def _evaluate(
    task: Task, functions: Sequence[Callable[[], Tensor]], batch: bool
) -> tuple[Tensor, list[Tensor]]:
    """Loss and constraints of a task, one vector for each block of constraints."""
    if batch:
        losses = task.losses()
        return losses.mean(), [task.class_losses(losses)]
    return task.loss(), [fn() for fn in functions]
