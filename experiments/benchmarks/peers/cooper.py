"""cooper-optim: its augmented Lagrangian with Adam, stopped when a point passes the ruler.

Recommended: simultaneous updates, Adam with 1e-3 for x and gradient ascent with rate 1 for the
multipliers, penalty 1. Tuned: both rates and the penalty, with Adam's rate halved every 2,000
steps.
"""

from typing import Any

import cooper  # noqa: F401  (the peer is skipped if it is not installed)
import torch
from torch import nn
from torch.optim import Optimizer

from experiments import cooper_adapter
from experiments.benchmarks.peers.torch_native import Step, evaluate, trainer
from experiments.cooper_adapter import Block, State
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
    """Build a step, and the optimizer of x.

    Args:
        problem: a problem of plain functions.
        x: the unknown.
        lr: rate of Adam.
        dual_lr: rate of the multipliers.
        penalty: coefficient of the quadratic term.
    """
    with torch.no_grad():
        first = evaluate(problem, x)
    kinds = ((first.A, False), (first.B, True))
    blocks = [Block(len(value), inequality) for value, inequality in kinds if value is not None]

    def state() -> State:
        values = evaluate(problem, x)
        return State(values.f, [value for value in (values.A, values.B) if value is not None])

    adam = torch.optim.Adam([x], lr=lr)
    optimizer = cooper_adapter.build(
        state, blocks, adam, dual_lr=dual_lr, penalty=penalty, dtype=x.dtype
    )
    return optimizer.roll, adam


solve = trainer(build)
