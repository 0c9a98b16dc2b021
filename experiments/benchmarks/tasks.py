"""The deterministic tasks: the paper's problems, on instances not used to choose defaults."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from experiments import features
from experiments.benchmarks.timed_run import Task
from experiments.data.images import Source
from experiments.problems import deterministic
from torch_powalm import Problem

START = 5.36e-4  # scale of x_1 of the clustering with n = 1000: ‖A(x_1)‖ as in the paper
STAGES = ("trial", "final")  # stages of a benchmark: settings of peers, then the comparison
FIRST = 100  # seed of the first instance: the defaults of power_alm were chosen with seeds below


class Plan(NamedTuple):
    """Instances and limits of a task.

    Args:
        instances: builds the k-th instance, k from 0 on.
        seeds: number of instances.
        rounds: repetitions of short runs.
        budget: seconds for a run.
        trial: seconds for a run of the grid.
        oracles: kinds of oracles for methods that accept both.
    """

    instances: Callable[[int], Task]
    seeds: int
    rounds: int
    budget: float
    trial: float
    oracles: tuple[str, ...] = ("hand", "autograd")


def gevp(seed: int, n: int = 500) -> Task:
    """Minimize ½ xᵀCx on the sphere."""
    problem, x_1 = deterministic.gevp(seed, n)
    Q = problem.oracle.f_by_hand.Q

    def plain() -> Problem:
        return Problem(lambda x: 0.5 * (x @ (Q @ x)), equality=lambda x: (x @ x - 1).reshape(1))

    return Task(f"GEVP n={n}", seed, x_1, 1e-3, plain, lambda: deterministic.gevp(seed, n)[0])


def qp(seed: int, n: int = 100, m: int = 20) -> Task:
    """Nonconvex QP."""
    problem, x_1 = deterministic.qp(seed, n, m)
    f, c = problem.oracle.f_by_hand, problem.oracle.blocks[0][1]

    def plain() -> Problem:
        return Problem(
            lambda x: 0.5 * (x @ (f.Q @ x)) + f.q @ x,
            equality=lambda x: c.C @ x - c.b,
            g=problem.g,
        )

    by_hand = deterministic.qp(seed, n, m)[0]
    return Task(f"QP n={n}", seed, x_1, 1e-3, plain, lambda: _again(by_hand))


def clustering(seed: int, points: Tensor, scale: float, r: int = 20, s: int = 10) -> Task:
    """Clustering of points."""
    problem, x_1 = deterministic.clustering(points, seed, r, s, scale)
    D = problem.oracle.f_by_hand.doubled / 2

    def plain() -> Problem:
        return Problem(
            lambda X: (X * (D @ X)).sum(), equality=lambda X: X @ X.sum(0) - 1, g=problem.g
        )

    name = f"clustering n={len(points)}"
    return Task(name, seed, x_1, 1e-4, plain, lambda: _again(problem))


def _again(problem: Problem) -> Problem:
    """The same problem with its own counters."""
    constraint = problem.oracle.constraints["equality"]
    return Problem(problem.oracle.f_by_hand, equality=constraint, g=problem.g)


def probabilities(root: str | None, cache: str = "outputs/features") -> Tensor:
    """Real features: the class probabilities of 1,000 test images of MNIST."""
    found = features.extract(
        Source("mnist", root), features.Training(), cache, n=1000, seed=0, progress=False
    )
    return torch.from_numpy(found.outputs).softmax(1)


def plans(root: str | None) -> dict[str, Plan]:
    """The tasks by name."""
    points: list[Tensor] = []

    def images() -> Tensor:
        if not points:
            points.append(probabilities(root))
        return points[0]

    def small(k: int) -> Task:
        """Different images in every instance, none of them among the first 200."""
        return clustering(FIRST + k, images()[200 * (k + 1) : 200 * (k + 2)], 1e-3)

    def large(k: int) -> Task:
        return clustering(FIRST + k, images(), START)

    return {
        "GEVP n=500": Plan(lambda k: gevp(FIRST + k), 3, 5, 30.0, 30.0),
        "QP n=100": Plan(lambda k: qp(FIRST + k), 10, 1, 30.0, 30.0),
        "clustering n=200": Plan(small, 4, 1, 30.0, 30.0),
        "clustering n=1000": Plan(large, 3, 1, 120.0, 60.0, ("hand",)),
    }
