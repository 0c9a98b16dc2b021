"""humancompatible-train: its dual optimizer ALM with Adam, stopped when a point passes the ruler.

Recommended: Adam with 1e-3, dual rate 0.01 and penalty 1, the defaults of its examples. Tuned: the
rate of Adam, the dual rate, the penalty, and halving the rate every 2,000 steps. The range of the
multipliers is so large that it is never active.
"""

from typing import Any

import torch
from humancompatible.train.dual_optim import ALM
from torch import nn
from torch.optim import Optimizer

from experiments.benchmarks.peers.torch_native import Step, evaluate, trainer
from torch_powalm import Problem

PACKAGE = "humancompatible-train"
ORACLES = ("autograd",)
METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "humancompatible-train": {
        "recommended": {},
        "rate 1e-2, dual 0.01": {"lr": 1e-2, "decay": 2000},
        "rate 1e-2, dual 0.1, penalty 10": {
            "lr": 1e-2,
            "dual_lr": 0.1,
            "penalty": 10.0,
            "decay": 2000,
        },
        "rate 1e-2, dual 1, penalty 10": {
            "lr": 1e-2,
            "dual_lr": 1.0,
            "penalty": 10.0,
            "decay": 2000,
        },
        "rate 1e-3, dual 0.1, penalty 10": {"dual_lr": 0.1, "penalty": 10.0, "decay": 2000},
    }
}
RANGE = (-1e9, 1e9)


def build(
    problem: Problem,
    x: nn.Parameter,
    *,
    lr: float = 1e-3,
    dual_lr: float = 0.01,
    penalty: float = 1.0,
) -> tuple[Step, Optimizer]:
    """Build a step, and the optimizer of x.

    Args:
        problem: a problem of plain functions.
        x: the unknown.
        lr: rate of Adam.
        dual_lr: rate of the multipliers.
        penalty: coefficient of the quadratic term.
    """
    with torch.no_grad():
        values = evaluate(problem, x)
    dual = None
    for value, is_ineq in ((values.A, False), (values.B, True)):
        if value is None:
            continue
        if dual is None:
            dual = ALM(
                init_duals=torch.zeros_like(value),
                lr=dual_lr,
                penalty=penalty,
                dual_range=RANGE,
                is_ineq=is_ineq,
            )
        else:
            dual.add_constraint_group(
                len(value),
                lr=dual_lr,
                init_duals=torch.zeros_like(value),
                dual_range=RANGE,
                is_ineq=is_ineq,
            )
    adam = torch.optim.Adam([x], lr=lr)

    def step() -> None:
        values = evaluate(problem, x)
        constraints = [value for value in (values.A, values.B) if value is not None]
        adam.zero_grad()
        dual.forward_update(values.f, torch.cat(constraints)).backward()  # type: ignore[union-attr]
        adam.step()

    return step, adam


solve = trainer(build)
