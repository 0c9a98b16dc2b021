"""cooper-optim for every comparison with it: constraints in blocks, one optimizer."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer


class Block(NamedTuple):
    """A vector of constraints of one kind."""

    size: int
    inequality: bool


class State(NamedTuple):
    """The loss and, for each block, its differentiable and its strict values.

    Args:
        loss: with its graph.
        values: what the primal step differentiates.
        strict: what the multipliers follow; None for the same values.
    """

    loss: Tensor
    values: Sequence[Tensor]
    strict: Sequence[Tensor] | None = None


def build(
    evaluate: Callable[..., State],
    blocks: Sequence[Block],
    primal: Optimizer,
    *,
    dual_lr: float,
    penalty: float | None,
    alternating: bool = False,
    proportional: float | None = None,
    dtype: torch.dtype = torch.float32,
) -> Any:
    """Build cooper's optimizer; its `roll` makes a whole step.

    Args:
        evaluate: gives the state at the current parameters; `roll` passes its keyword arguments.
        blocks: the constraints.
        primal: optimizer of the parameters.
        dual_lr: step size of the multipliers, by gradient ascent.
        penalty: first coefficient of the augmented Lagrangian; None for the Lagrangian.
        alternating: update the multipliers before the parameters instead of simultaneously.
        proportional: gain Kp of nuPI, which then updates the multipliers; None for gradient ascent.
        dtype: of the multipliers.
    """
    cooper = _import()
    problem = _problem(evaluate, [_constraint(block, penalty, dtype) for block in blocks])
    form = cooper.optim.SimultaneousOptimizer
    if alternating:
        form = cooper.optim.AlternatingDualPrimalOptimizer
    multipliers = list(problem.dual_parameters())
    dual: Optimizer = SGD(multipliers, lr=dual_lr, maximize=True)
    if proportional is not None:
        dual = cooper.optim.nuPI(multipliers, lr=dual_lr, Kp=proportional, maximize=True)
    return form(cmp=problem, primal_optimizers=primal, dual_optimizers=dual)


def penalty_growth(step: float, tolerance: float) -> Any:
    """Cooper's rule that adds `step` to the coefficients of constraints violated by more."""
    parts = _import().penalty_coefficients
    return parts.AdditivePenaltyCoefficientUpdater(step, violation_tolerance=tolerance)


def _constraint(block: Block, penalty: float | None, dtype: torch.dtype) -> Any:
    cooper = _import()
    kinds, forms = cooper.ConstraintType, cooper.formulations
    coefficient = None
    if penalty is not None:
        init = torch.tensor(penalty, dtype=dtype)
        coefficient = cooper.penalty_coefficients.DensePenaltyCoefficient(init)
    return cooper.Constraint(
        constraint_type=kinds.INEQUALITY if block.inequality else kinds.EQUALITY,
        formulation_type=forms.Lagrangian if penalty is None else forms.AugmentedLagrangian,
        multiplier=cooper.multipliers.DenseMultiplier(num_constraints=block.size, dtype=dtype),
        penalty_coefficient=coefficient,
    )


def _problem(evaluate: Callable[..., State], constraints: Sequence[Any]) -> Any:
    cooper = _import()

    class Problem(cooper.ConstrainedMinimizationProblem):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            for i, constraint in enumerate(constraints):
                setattr(self, f"block_{i}", constraint)  # registers its multipliers

        def compute_cmp_state(self, **batch: Any) -> Any:
            loss, values, strict = evaluate(**batch)
            states = [
                cooper.ConstraintState(violation=value, strict_violation=exact)
                for value, exact in zip(values, strict or [None] * len(values), strict=True)
            ]
            observed = dict(zip(constraints, states, strict=True))
            return cooper.CMPState(loss=loss, observed_constraints=observed)

    return Problem()


def _import() -> Any:
    try:
        import cooper
    except ImportError as error:
        raise ModuleNotFoundError(
            "cooper-optim is missing; install it with pip install 'torch-powalm[benchmarks]'"
        ) from error
    return cooper
