"""What the peers for training share: a loop of steps over plain torch functions.

None of them has a stopping test or a term g: the point is projected onto dom g after each step, and
it is shown to the ruler every 20 steps, at no cost.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import StepLR

from experiments.benchmarks.watch import Watch
from torch_powalm import Problem

EVERY = 20  # steps between two looks of the ruler
Step = Callable[[], object]


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


def trainer(build: Callable[..., tuple[Step, Optimizer]]) -> Callable[..., NoReturn]:
    """The `solve` of a peer: steps until the watch ends the run.

    Its setting `decay` halves the learning rate every so many steps, None for never; the others
    are those of `build`.

    Args:
        build: makes a step and the optimizer of x in it from (problem, x, **settings).
    """

    def solve(
        problem: Problem,
        x_1: Tensor,
        eps: float,
        watch: Watch,
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
                    watch.check(x)

    return solve
