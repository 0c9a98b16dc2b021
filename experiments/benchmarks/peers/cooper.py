"""cooper-optim: its augmented Lagrangian with Adam, stopped when the ruler is satisfied.

Recommended: simultaneous updates, Adam with 1e-3 for x and gradient ascent with rate 1 for the
multipliers, penalty 1. Tuned: both rates and the penalty, with the rate of Adam halved every 2,000
steps.
"""

from typing import Any

import cooper as co
import torch
from torch import nn
from torch.optim import Optimizer

from experiments.benchmarks.peers.torch_native import Step, evaluate, trainer
from torch_powalm import Problem

PACKAGE = "cooper-optim"
ORACLES = ("autograd",)
METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "cooper": {
        "recommended": {},
        "rate 1e-2, dual 0.01": {"lr": 1e-2, "dual_lr": 0.01, "decay": 2000},
        "rate 1e-2, dual 0.01, penalty 10": {
            "lr": 1e-2,
            "dual_lr": 0.01,
            "penalty": 10.0,
            "decay": 2000,
        },
        "rate 1e-2, dual 0.1, penalty 10": {
            "lr": 1e-2,
            "dual_lr": 0.1,
            "penalty": 10.0,
            "decay": 2000,
        },
        "rate 1e-3, dual 0.01, penalty 10": {"dual_lr": 0.01, "penalty": 10.0, "decay": 2000},
    }
}


def build(
    problem: Problem,
    x: nn.Parameter,
    *,
    lr: float = 1e-3,
    dual_lr: float = 1.0,
    penalty: float = 1.0,
) -> tuple[Step, Optimizer]:
    """A step of it, and the optimizer of x.

    Args:
        problem: the problem, of plain functions.
        x: the unknown.
        lr: rate of Adam.
        dual_lr: rate of the multipliers.
        penalty: coefficient of the quadratic term.
    """
    cmp = _Problem(problem, x, penalty)
    adam = torch.optim.Adam([x], lr=lr)
    dual = torch.optim.SGD(cmp.dual_parameters(), lr=dual_lr, maximize=True)
    optimizer = co.optim.SimultaneousOptimizer(
        cmp=cmp, primal_optimizers=adam, dual_optimizers=dual
    )
    return optimizer.roll, adam


solve = trainer(build)


class _Problem(co.ConstrainedMinimizationProblem):  # type: ignore[misc]
    def __init__(self, problem: Problem, x: nn.Parameter, penalty: float) -> None:
        super().__init__()
        self.problem, self.x = problem, x
        with torch.no_grad():
            values = evaluate(problem, x)
        kinds = {"equality": values.A, "inequality": values.B}
        for name, value in kinds.items():
            if value is None:
                continue
            block = co.Constraint(
                constraint_type=co.ConstraintType[name.upper()],
                formulation_type=co.formulations.AugmentedLagrangian,
                multiplier=co.multipliers.DenseMultiplier(
                    num_constraints=len(value), dtype=x.dtype
                ),
                penalty_coefficient=co.penalty_coefficients.DensePenaltyCoefficient(
                    init=torch.tensor(penalty, dtype=x.dtype)
                ),
            )
            setattr(self, name, block)

    def compute_cmp_state(self) -> Any:
        values = evaluate(self.problem, self.x)
        observed = {}
        for name, value in (("equality", values.A), ("inequality", values.B)):
            if value is not None:
                observed[getattr(self, name)] = co.ConstraintState(violation=value)
        return co.CMPState(loss=values.f, observed_constraints=observed)
