"""A loop of training steps over plain torch functions, for the peers made for training.

None of them has a stopping test or a term g: the point is projected onto dom g after each step and
checked by the ruler every 20 steps, while the clock is paused.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import StepLR

from experiments.benchmarks.timed_run import RunClock
from torch_powalm import Problem

EVERY = 20  # steps between two checks by the ruler
Step = Callable[[], object]


class Values(NamedTuple):
    """f(x), A(x) and B(x) with their graphs; None for constraints that do not exist."""

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


def trainer(build: Callable[..., tuple[Step, Optimizer]]) -> Callable[..., NoReturn]:
    """The `solve` of a peer, which steps until the clock ends the run.

    The setting `decay` is the number of steps after which the learning rate is halved, None for
    never; the other settings are those of `build`.

    Args:
        build: returns a step and the optimizer of x from (problem, x, **settings).
    """

    def solve(
        problem: Problem,
        x_1: Tensor,
        eps: float,
        clock: RunClock,
        *,
        decay: int | None = None,
        **settings: Any,
    ) -> NoReturn:
        x = nn.Parameter(x_1)
        step, optimizer = build(problem, x, **settings)
        after = (lambda: None) if decay is None else StepLR(optimizer, decay, gamma=0.5).step
        k = 0
        while True:
            step()
            after()
            with torch.no_grad():
                x.copy_(problem.g.prox(x, 1.0))
                k += 1
                if k % EVERY == 0:
                    clock.check(x)

    return solve
