"""Whether the constraints can be met near a point: stationary points of ‖(A, max(B, 0))‖."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from torch_powalm.functional import norm
from torch_powalm.problem import Problem
from torch_powalm.prox import Proximable
from torch_powalm.result import Status
from torch_powalm.solvers import PANOC, run

_LARGE = 1e8  # the factor by which a gradient outweighs all of g but its domain
_NOISE = 1e-3  # distance of a neighbour, relative to a typical ‖x‖
_STATIONARY = 1e-3  # of the slope at a neighbour: less than that is no slope


class Restored(NamedTuple):
    """A point with a smaller violation, and whether it is feasible or else stationary."""

    x: Tensor
    feasible: bool


def neighbour(g: Proximable, x: Tensor, distance: float) -> Tensor:
    """A point of dom g in a random direction, the same at every call."""
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
    step = distance / (float(torch.linalg.vector_norm(noise)) or 1.0)
    return g.prox(torch.add(x, noise, alpha=step), torch.finfo(x.dtype).eps)


@torch.no_grad()
def is_stuck(problem: Problem, x: Tensor, length: float) -> bool:
    """Whether the violation has no slope at an infeasible x.

    Its gradient on dom g is compared with that at a neighbour, so that no scale is needed but
    the length of a typical x. A feasible neighbour says that it has one.
    """
    slopes = []
    for point in x, neighbour(problem.g, x, _NOISE * length):
        v_norm, grad = _violation(problem, point)
        if v_norm == 0:
            return False
        slopes.append(_Domain(problem.g).distance(point, grad) / v_norm)
    return slopes[0] <= _STATIONARY * slopes[1] and slopes[0] < math.inf


@torch.no_grad()
def restore(
    problem: Problem,
    x: Tensor,
    length: float,
    eps_A: float,
    max_iter: int,
    used_up: Callable[[], bool] = lambda: False,
) -> Restored | None:
    """Minimise the violation alone, from beside x, so that a saddle point does not hold it.

    Returns None if neither a feasible nor a stationary point is found.
    """
    start = neighbour(problem.g, x, _NOISE * length)
    half_square, domain = _HalfSquare(problem, start), _Domain(problem.g)
    _, grad = half_square.value_and_grad(start)
    result = run(
        PANOC(),
        half_square,
        domain,
        start,
        tol=1e-8 * float(torch.linalg.vector_norm(grad)) or 1e-300,
        max_iter=max_iter,
        stop=lambda: half_square.lowest <= 0.5 * eps_A**2 or used_up(),
    )
    if result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    # The run may have been stopped by a trial point, which need not be in dom g.
    for point in result.x, problem.g.prox(half_square.best, torch.finfo(x.dtype).eps):
        if math.sqrt(2 * half_square.value(point)) <= eps_A:
            return Restored(point, feasible=True)
    return Restored(result.x, feasible=False) if is_stuck(problem, result.x, length) else None


def _violation(problem: Problem, x: Tensor) -> tuple[float, Tensor]:
    """‖v‖ and Jᵀv for v = (A(x), max(B(x), 0))."""
    at = problem.oracle.at(x, objective=False)
    v = problem.violation(at)
    return norm(v), at.gradient(v)


class _HalfSquare:
    """½‖(A(x), max(B(x), 0))‖², its smallest value so far and where that was."""

    def __init__(self, problem: Problem, x: Tensor) -> None:
        self.problem = problem
        self.lowest, self.best = math.inf, x

    def value(self, x: Tensor) -> float:
        return self.value_and_grad(x)[0]

    def value_and_grad(self, x: Tensor) -> tuple[float, Tensor]:
        v_norm, grad = _violation(self.problem, x)
        value = 0.5 * v_norm**2 if v_norm < 1e150 else math.inf
        if value < self.lowest:
            self.lowest, self.best = value, x
        return value, grad


class _Domain:
    """The indicator of dom g, as the limit of g/c for large c."""

    is_indicator: ClassVar[bool] = True

    def __init__(self, g: Proximable) -> None:
        self.g = g

    def value(self, x: Tensor) -> float:
        return math.inf if self.g.value(x) == math.inf else 0.0

    def prox(self, v: Tensor, step: float) -> Tensor:
        return self.g.prox(v, step / _LARGE)

    def distance(self, x: Tensor, v: Tensor) -> float:
        return self.g.distance(x, _LARGE * v) / _LARGE
