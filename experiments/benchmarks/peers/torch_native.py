"""What the peers for training share: a loop of steps over plain torch functions.

None of them has a stopping test or a term g: the point is projected onto dom g after each step, and
it is shown to the ruler every 20 steps, at no cost.
"""

from collections.abc import Callable
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from experiments.benchmarks.ruler import Watch
from torch_powalm import Problem

EVERY = 20  # steps between two looks of the ruler


class Values(NamedTuple):
    """f(x), A(x) and B(x) with their graphs; None for constraints that are not there."""

    f: Tensor
    A: Tensor | None
    B: Tensor | None


def evaluate(problem: Problem, x: Tensor) -> Values:
    """Evaluate f and the constraints, counted as one evaluation and one gradient of f."""
    oracle = problem.oracle
    if oracle.f is None:
        raise TypeError("f must be a plain function, got a hand-written oracle")
    oracle.calls.function += 1
    oracle.calls.gradient += 1
    A, B = oracle.constraints.get("equality"), oracle.constraints.get("inequality")
    return Values(oracle.f(x), A(x) if callable(A) else None, B(x) if callable(B) else None)


def loop(problem: Problem, x: nn.Parameter, watch: Watch, step: Callable[[], object]) -> NoReturn:
    """Make steps of a peer until the watch ends the run."""
    k = 0
    while True:
        step()
        with torch.no_grad():
            x.copy_(problem.g.prox(x, 1.0))
            k += 1
            if k % EVERY == 0:
                watch.check(x)


def halving(optimizer: torch.optim.Optimizer, decay: int | None) -> Callable[[], None]:
    """A function to be called after each step: halves the learning rate every `decay` steps."""
    if decay is None:
        return lambda: None
    return torch.optim.lr_scheduler.StepLR(optimizer, decay, gamma=0.5).step
