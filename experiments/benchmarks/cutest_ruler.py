"""The same measure of a CUTEst point for every method.

The point is moved into its box. Then

    primal     ‖c(x) outside its bounds‖
    dual       the larger of dist(−∇f(x) − Jᵀy, normal cone of the box) and the complementarity of
               y: for every row the smaller of |y| times the slack and of min(|y|, slack)

y are the method's own multipliers if they reach the tolerance, else the best ones by bounded least
squares over the rows close to a bound. A second try puts coordinates close to a bound on it. The
best result counts.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import lsq_linear

from experiments.benchmarks.cutest_problems import Cutest

NEAR = 1e-6  # coordinates this close to a bound may be put on it
_MOST = 1500  # unknowns of a least-squares problem


class Measured(NamedTuple):
    """Residuals and objective of a point."""

    primal: float
    dual: float
    objective: float


def measure(cutest: Cutest, x: Any, y: Any, eps: float) -> Measured:
    """The residuals of a point with its own multipliers (None if it has none) or better ones."""
    if x is None or not np.isfinite(x).all():
        return Measured(np.inf, np.inf, np.nan)
    x = np.clip(x, cutest.x_lower, cutest.x_upper)
    near = np.where(x <= cutest.x_lower + NEAR * (1 + np.abs(cutest.x_lower)), cutest.x_lower, x)
    near = np.where(
        near >= cutest.x_upper - NEAR * (1 + np.abs(cutest.x_upper)), cutest.x_upper, near
    )
    points = [x] if np.array_equal(near, x) else [x, near]
    return min((_measure(cutest, point, y, eps) for point in points), key=_worst)


def _measure(cutest: Cutest, x: Any, y: Any, eps: float) -> Measured:
    f_x, grad = cutest.f(x)
    c, J = cutest.c(x) if cutest.m else (np.zeros(0), np.zeros((0, cutest.n)))
    if not (np.isfinite(f_x) and np.isfinite(grad).all() and np.isfinite(c).all()):
        return Measured(np.inf, np.inf, np.nan)
    outside = np.maximum(np.maximum(c - cutest.c_upper, cutest.c_lower - c), 0.0)
    primal = float(np.linalg.norm(outside))
    found = []

    def add(y: Any) -> bool:
        slack = np.where(y > 0, cutest.c_upper - c, c - cutest.c_lower)
        slack = np.where(cutest.fixed_rows, 0.0, np.maximum(slack, 0.0))
        both = np.where(y == 0, 0.0, np.minimum(np.abs(y), slack))
        with np.errstate(invalid="ignore"):
            both = np.minimum(both, np.where(y == 0, 0.0, np.abs(y) * slack))
        dual = max(_distance(cutest, x, grad + y @ J), float(both.max(initial=0.0)))
        found.append(Measured(primal, dual, f_x))
        return _worst(found[-1]) <= eps

    if y is not None and np.isfinite(y).all() and add(np.asarray(y, dtype=np.float64)):
        return found[0]
    for active in (eps, 1e-2):
        if add(_best(cutest, x, grad, c, J, active)):
            break
    return min(found, key=_worst)


def _distance(cutest: Cutest, x: Any, v: Any) -> float:
    v = np.where(x <= cutest.x_lower, np.minimum(v, 0.0), v)
    return float(np.linalg.norm(np.where(x >= cutest.x_upper, np.maximum(v, 0.0), v)))


def _best(cutest: Cutest, x: Any, grad: Any, c: Any, J: Any, active: float) -> Any:
    """Multipliers of the smallest distance, 0 for the rows that are not active."""
    at_upper, at_lower = c >= cutest.c_upper - active, c <= cutest.c_lower + active
    rows = np.flatnonzero(at_upper | at_lower)
    y = np.zeros(cutest.m)
    low_x, high_x = x <= cutest.x_lower, x >= cutest.x_upper
    edge = np.flatnonzero(low_x | high_x)
    if len(rows) == 0 or len(rows) + len(edge) > _MOST:
        return y
    unit = np.zeros((cutest.n, len(edge)))
    unit[edge, np.arange(len(edge))] = 1.0
    matrix = np.hstack([J[rows].T, unit])
    low = np.concatenate(
        [np.where(at_lower, -np.inf, 0.0)[rows], np.where(low_x, -np.inf, 0)[edge]]
    )
    high = np.concatenate(
        [np.where(at_upper, np.inf, 0.0)[rows], np.where(high_x, np.inf, 0)[edge]]
    )
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    try:
        found = lsq_linear(matrix / scale, -grad, (low, np.maximum(high, low + 1e-300)), "bvls")
    except (np.linalg.LinAlgError, ValueError):
        return y
    y[rows] = found.x[: len(rows)] / scale[: len(rows)]
    return y


def _worst(measured: Measured) -> float:
    value = max(measured.primal, measured.dual)
    return value if value == value else np.inf
