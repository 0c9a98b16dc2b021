"""power_alm with its defaults, for several powers; nothing else is tuned."""

from typing import Any

from torch import Tensor

from experiments.benchmarks.ruler import Answer
from experiments.benchmarks.timed_run import RunClock
from torch_powalm import Problem, power_alm

PACKAGE = "torch-powalm"
ORACLES = ("hand", "autograd")
METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "ours ν = 1": {"defaults": {}},
    "ours ν = 0.8": {"defaults": {"nu": 0.8}},
    "ours ν = 0.7": {"defaults": {"nu": 0.7}},
}


def solve(problem: Problem, x_1: Tensor, eps: float, clock: RunClock, *, nu: float = 1.0) -> Answer:
    """Solve with defaults.

    Args:
        problem: the problem.
        x_1: start.
        eps: both tolerances.
        clock: gives the time left.
        nu: power.
    """
    solution = power_alm(problem, x_1, nu=nu, eps_phi=eps, eps_A=eps, max_seconds=clock.left)
    return Answer(solution.x, solution.y)
