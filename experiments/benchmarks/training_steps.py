"""A training step with constraints by every method: `method(task, batch)` makes a function of it.

`batch` says whether the class losses of the batch are the constraints, or the task's own functions.
Multipliers are updated every EPOCH steps by ours and the floor, at every step by the others, whose
methods are made so.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from experiments.benchmarks.training_tasks import Task
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

EPOCH = 50
MANY = 1000  # constraints, for mdmm
Step = Callable[[], None]


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
    """The augmented Lagrangian written out by hand, the cheapest way we know."""
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


def ours(nu: float) -> Callable[[Task, bool], Step]:
    """PowerALMOptimizer."""

    def build(task: Task, batch: bool) -> Step:
        constraints = ConstraintRegistry()
        if batch:
            constraints.inequality("class_loss", size=10)
        else:
            for i, fn in enumerate(task.functions()):
                constraints.equality(f"block_{i}", fn)
        optimizer = PowerALMOptimizer(adam(task), constraints, nu=nu, beta_1=1.0, omega=1.1)

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

    return build


def cooper(task: Task, batch: bool) -> Step:
    """cooper-optim's AugmentedLagrangian with simultaneous updates."""
    import cooper as co

    kind = co.ConstraintType.INEQUALITY if batch else co.ConstraintType.EQUALITY
    functions = task.functions()

    class Problem(co.ConstrainedMinimizationProblem):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = []
            for i, size in enumerate([10] if batch else [len(fn()) for fn in functions]):
                block = co.Constraint(
                    constraint_type=kind,
                    formulation_type=co.formulations.AugmentedLagrangian,
                    multiplier=co.multipliers.DenseMultiplier(num_constraints=size),
                    penalty_coefficient=co.penalty_coefficients.DensePenaltyCoefficient(
                        init=torch.tensor(1.0)
                    ),
                )
                self.blocks.append(block)
                setattr(self, f"block_{i}", block)

        def compute_cmp_state(self) -> co.CMPState:
            loss, values = _evaluate(task, functions, batch)
            states = [co.ConstraintState(violation=value) for value in values]
            return co.CMPState(
                loss=loss,
                observed_constraints=dict(zip(self.blocks, states, strict=True)),
            )

    problem = Problem()
    dual = torch.optim.SGD(problem.dual_parameters(), lr=1e-3, maximize=True)
    optimizer = co.optim.SimultaneousOptimizer(
        cmp=problem, primal_optimizers=adam(task), dual_optimizers=dual
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
    """mdmm, one object for each constraint, all of them views of vectors that are made once."""
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
    """Loss and constraints of a task, one vector for each block."""
    if batch:
        losses = task.losses()
        return losses.mean(), [task.class_losses(losses)]
    return task.loss(), [fn() for fn in functions]
