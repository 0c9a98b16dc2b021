"""SciPy's SLSQP and trust-constr, stopped at the first iterate that passes the ruler.

Recommended: the defaults, with enough iterations, and tolerances that never stop a run before the
ruler does. Tuned: the first trust region and the barrier tolerance of trust-constr; SLSQP has no
settings to tune. Both need the dense Jacobian, which is computed in one batch, and SLSQP a dense
n × n matrix as well. trust-constr approximates the Hessian by dense BFGS. With more than 6,000
unknowns neither fits into memory. The ball of the clustering becomes one more inequality.
"""

from typing import Any

import numpy as np
from scipy.optimize import BFGS, Bounds, NonlinearConstraint, minimize
from torch import Tensor

from experiments.benchmarks.peers.flat import Flat
from experiments.benchmarks.ruler import Answer
from experiments.benchmarks.timed_run import RunClock, UnsuitedError
from torch_powalm import Problem, prox

PACKAGE = "scipy"
ORACLES = ("hand", "autograd")
LARGEST = 6000  # unknowns
METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "SLSQP": {"recommended": {"method": "SLSQP"}},
    "trust-constr": {
        "recommended": {"method": "trust-constr"},
        "region 10": {"method": "trust-constr", "initial_tr_radius": 10.0},
        "region 10, barrier 1e-3": {
            "method": "trust-constr",
            "initial_tr_radius": 10.0,
            "initial_barrier_parameter": 1e-3,
            "initial_barrier_tolerance": 1e-3,
        },
    },
}


def solve(
    problem: Problem, x_1: Tensor, eps: float, clock: RunClock, *, method: str, **options: Any
) -> Answer:
    """Solve by a method of scipy.optimize.minimize.

    Args:
        problem: the problem.
        x_1: start.
        eps: tolerance.
        clock: tests every iterate.
        method: "SLSQP" or "trust-constr".
        options: of the method.
    """
    flat, options = Flat(problem, x_1), dict(options)
    if flat.n > LARGEST:
        raise UnsuitedError(f"a dense matrix of {flat.n:,} x {flat.n:,} entries")

    def seen(x: Any, state: Any = None) -> None:
        clock.check(flat.tensor(x))

    if method == "SLSQP":
        constraints: Any = _dictionaries(flat, problem.g)
        options |= {"maxiter": 10_000, "ftol": 1e-16}
    else:
        constraints = _constraints(flat, problem.g)
        options |= {"maxiter": 10_000, "gtol": 1e-13, "xtol": 1e-14, "barrier_tol": 1e-14}
    found = minimize(
        flat.f,
        flat.x_1,
        jac=flat.gradient,
        hess=BFGS() if method == "trust-constr" else None,
        method=method,
        bounds=_bounds(problem.g),
        constraints=constraints,
        callback=seen,
        options=options,
    )
    return Answer(flat.tensor(found.x))


def _bounds(g: prox.Proximable) -> Bounds | None:
    if isinstance(g, prox.Box):
        return Bounds(float(g.lower), float(g.upper))
    if isinstance(g, prox.NonNegativeBall):
        return Bounds(0.0, np.inf)
    if isinstance(g, prox.Zero):
        return None
    raise UnsuitedError(f"no form of {type(g).__name__}")


def _dictionaries(flat: Flat, g: prox.Proximable) -> list[dict[str, Any]]:
    """SLSQP's form; its inequalities are ≥ 0."""
    k, found = flat.equalities, []
    if k:
        found.append(
            {
                "type": "eq",
                "fun": lambda x: flat.constraints(x)[:k],
                "jac": lambda x: flat.jacobian(x)[:k],
            }
        )
    if k < flat.m:
        found.append(
            {
                "type": "ineq",
                "fun": lambda x: -flat.constraints(x)[k:],
                "jac": lambda x: -flat.jacobian(x)[k:],
            }
        )
    if isinstance(g, prox.NonNegativeBall):
        found.append(
            {"type": "ineq", "fun": lambda x: g.radius**2 - x @ x, "jac": lambda x: -2 * x}
        )
    return found


def _constraints(flat: Flat, g: prox.Proximable) -> list[NonlinearConstraint]:
    lower = np.zeros(flat.m)
    lower[flat.equalities :] = -np.inf
    found = [
        NonlinearConstraint(
            flat.constraints, lower, np.zeros(flat.m), jac=flat.jacobian, hess=BFGS()
        )
    ]
    if isinstance(g, prox.NonNegativeBall):
        ball = NonlinearConstraint(
            lambda x: x @ x, -np.inf, g.radius**2, jac=lambda x: 2 * x[None], hess=BFGS()
        )
        found.append(ball)
    return found
