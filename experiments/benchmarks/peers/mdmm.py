"""mdmm: the modified differential multiplier method, stopped when a point passes the ruler.

Recommended: its make_optimizer, Adamax with 2e-3, damping 1. A constraint of mdmm has one scalar
multiplier, so a vector of m constraints becomes m constraints, each a view of the vector, which is
evaluated once per step. Beyond 200 constraints Python overhead dominates, and it is not run. Tuned:
the rate, the damping, and halving the rate every 2,000 steps.
"""

from typing import Any

import mdmm
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from experiments.benchmarks.peers.torch_native import Step, evaluate, trainer
from experiments.benchmarks.timed_run import UnsuitedError
from torch_powalm import Problem

PACKAGE = "mdmm"
ORACLES = ("autograd",)
MOST = 200  # constraints
METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "mdmm": {
        "recommended": {},
        "rate 1e-2": {"lr": 1e-2, "decay": 2000},
        "rate 1e-2, damping 10": {"lr": 1e-2, "damping": 10.0, "decay": 2000},
        "rate 1e-3, damping 10": {"lr": 1e-3, "damping": 10.0, "decay": 2000},
    }
}


def build(
    problem: Problem,
    x: nn.Parameter,
    *,
    lr: float = 2e-3,
    damping: float = 1.0,
) -> tuple[Step, Optimizer]:
    """Build a step, and the optimizer of x.

    Args:
        problem: a problem of plain functions.
        x: the unknown.
        lr: rate of Adamax.
        damping: of all constraints.
    """
    with torch.no_grad():
        first = evaluate(problem, x)
    sizes = [0 if value is None else len(value) for value in (first.A, first.B)]
    if sum(sizes) > MOST:
        raise UnsuitedError(f"{sum(sizes):,} constraints, each of them an object")
    now: list[list[Tensor]] = [[], []]  # the values of both kinds, one by one
    equalities = [
        mdmm.EqConstraint(lambda i=i: now[0][i], 0.0, damping=damping)  # type: ignore[misc]
        for i in range(sizes[0])
    ]
    inequalities = [
        mdmm.MaxConstraint(lambda i=i: now[1][i], 0.0, damping=damping)  # type: ignore[misc]
        for i in range(sizes[1])
    ]
    module = mdmm.MDMM([*equalities, *inequalities]).to(x.dtype)
    optimizer = module.make_optimizer([x], lr=lr)

    def step() -> None:
        values = evaluate(problem, x)
        for k, part in enumerate((values.A, values.B)):
            now[k] = [] if part is None else list(part.unbind())
        optimizer.zero_grad()
        module(values.f).value.backward()
        optimizer.step()

    return step, optimizer


solve = trainer(build)
