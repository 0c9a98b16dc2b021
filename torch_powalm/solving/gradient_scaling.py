"""Scaling: f and the constraints divided by their gradients at x_1 where these are large."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torch_powalm.functional import norm
from torch_powalm.result import Residuals
from torch_powalm.solving.oracle import Oracle, Point
from torch_powalm.solving.problem import Problem

_LARGE = 100.0  # norm of a gradient that makes scaling worth it
_PROBES = 3  # random directions that estimate the norms of the rows of J
_STEP = 1e-6  # length of a probe, relative to ‖x‖


class Scales(NamedTuple):
    """Factors of f and of every constraint, in (0, 1]."""

    f: float
    r: Tensor


def find_scales(problem: Problem, at: Point, *, dense: bool = False) -> Scales | None:
    """1/max(1, ‖∇‖) for f and every constraint; None if no gradient is large.

    Without J, the norms of its rows are estimated from differences of the constraints in a few
    random directions, at the cost of one evaluation each instead of one for every row. A term g
    that is not an indicator has the units of f, which then stays as it is.

    Args:
        problem: the problem.
        at: the start, evaluated; its gradient is used.
        dense: whether J is known or will be computed anyway.
    """
    grad_norm = norm(at.gradient(torch.zeros_like(at.r)))
    if dense and len(at.r) and grad_norm == 0:
        return None  # nothing to balance: Newton steps do not depend on the scale of f
    if dense and len(at.r):
        rows = torch.nan_to_num(at.jacobian().norm(dim=1), nan=0.0, posinf=0.0)
    else:
        rows = _row_norms(problem, at)
    f_large = problem.g.is_indicator and _LARGE < grad_norm < math.inf
    r_large = len(rows) > 0 and float(rows.max()) > _LARGE
    if not (f_large or r_large):
        return None
    f = 1 / grad_norm if f_large else 1.0
    r = 1 / rows.clamp(min=1.0) if r_large else torch.ones_like(at.r)
    return Scales(f, r)


def _row_norms(problem: Problem, at: Point) -> Tensor:
    """Estimates of ‖∇r_i(x)‖, 0 where they are not finite."""
    if len(at.r) == 0:
        return at.r
    generator = torch.Generator().manual_seed(0)
    length = _STEP * (norm(at.x) or 1.0)
    squares = torch.zeros_like(at.r)
    for _ in range(_PROBES):
        d = torch.randn(at.x.shape, generator=generator, dtype=torch.float64).to(at.x)
        h = length / (norm(d) or 1.0)
        there = problem.oracle.at(problem.g.prox(at.x + h * d, 1e-300), objective=False)
        squares += ((there.r - at.r) / h).square() / _PROBES
    return torch.nan_to_num(squares.sqrt(), nan=0.0, posinf=0.0)


class ScaledProblem(Problem):
    """A problem in scaled units whose residuals, objective and multipliers are the user's.

    Args:
        problem: in the user's units.
        scales: factors of f and of the constraints.
    """

    oracle: _ScaledOracle

    def __init__(self, problem: Problem, scales: Scales) -> None:
        self.g, self.oracle = problem.g, _ScaledOracle(problem.oracle, scales)
        self.f_scale, self.r_scale = scales.f, float(scales.r.min()) if len(scales.r) else 1.0
        self._scales = scales

    def measure(self, at: Point, y: Tensor, v: Tensor | None = None) -> Residuals:
        """Residuals in the user's units of an evaluated point with scaled multipliers."""
        v = at.gradient(y) if v is None else v
        distance = self.g.distance(at.x, v) / self.f_scale
        return self.residuals_of(at, at.r / self._scales.r, self.multiplier(y), distance)

    def objective(self, at: Point) -> float:
        """f(x) + g(x) in the user's units."""
        return at.f / self.f_scale + self.g.value(at.x)

    def multiplier(self, y: Tensor) -> Tensor:
        """The multiplier in the user's units."""
        return y * self._scales.r / self._scales.f

    def scaled_multiplier(self, y: Tensor) -> Tensor:
        """The scaled multiplier, from one in the user's units."""
        return y * self._scales.f / self._scales.r


class _ScaledOracle(Oracle):
    """An oracle that shares the counters of another one and returns scaled points."""

    def __init__(self, oracle: Oracle, scales: Scales) -> None:
        self.__dict__.update(oracle.__dict__)
        self._oracle, self._scales = oracle, scales

    def at(self, x: Tensor, *, objective: bool = True) -> Point:
        """Evaluate at x."""
        return self.scaled(self._oracle.at(x, objective=objective), objective=objective)

    def scaled(self, point: Point, *, objective: bool = True) -> Point:
        """A point of the oracle in the user's units."""
        return _ScaledPoint(point, self._scales, objective)


class _ScaledPoint(Point):
    """s_f f, s_r r and s_f ∇f + Jᵀ(s_r w)."""

    def __init__(self, point: Point, scales: Scales, objective: bool) -> None:
        self._point, self._scales = point, scales
        self._factor = scales.f if objective else 1.0
        self.x, self.sizes = point.x, point.sizes
        self.f, self.r = scales.f * point.f, scales.r * point.r

    def gradient(self, w: Tensor) -> Tensor:
        """The gradient of the scaled Lagrangian."""
        return self._factor * self._point.gradient(self._scales.r * w / self._factor)

    def pull(self, w: Tensor) -> Tensor:
        """Jᵀ(s_r w)."""
        return self._point.pull(self._scales.r * w)

    def jacobian(self) -> Tensor:
        """s_r J."""
        return self._scales.r.unsqueeze(1) * self._point.jacobian()
