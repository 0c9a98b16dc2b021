"""cyipopt: Ipopt with a limited-memory Hessian, stopped at the first iterate that passes the ruler.

Recommended: Ipopt's defaults with `hessian_approximation` limited-memory, since there are no second
derivatives, and tolerances that never stop a run before the ruler does. Tuned: the monotone rule of
the barrier parameter, 50 pairs instead of 6. The dense Jacobian is computed in one batch; the ball
of the clustering becomes one more inequality. Ipopt factorizes the Jacobian in every iteration:
with 1,000 constraints and 20,000 unknowns, three points took six minutes, during which it cannot be
interrupted, so it is not run with more than 6,000 unknowns.

It is not in the `benchmarks` extra: it is built from source and needs Ipopt (on Debian the packages
coinor-libipopt-dev, libblas-dev, liblapack-dev and pkg-config), without which the whole extra would
fail to install. `make bench` tries to install it and continues without it.
"""

from typing import Any

import cyipopt
import numpy as np
from torch import Tensor

from experiments.benchmarks.peers.flat import Flat
from experiments.benchmarks.ruler import Answer
from experiments.benchmarks.timed_run import RunClock, UnsuitedError
from torch_powalm import Problem, prox

PACKAGE = "cyipopt"
OVER = f" (Ipopt {'.'.join(map(str, cyipopt.IPOPT_VERSION))})"
ORACLES = ("hand", "autograd")
LARGEST = 6000  # unknowns
METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "cyipopt": {
        "recommended": {},
        "monotone barrier": {"mu_strategy": "monotone"},
        "memory 50": {"limited_memory_max_history": 50},
    }
}


def solve(problem: Problem, x_1: Tensor, eps: float, clock: RunClock, **options: Any) -> Answer:
    """Solve by Ipopt.

    Args:
        problem: the problem.
        x_1: start.
        eps: tolerance.
        clock: tests every iterate.
        options: of Ipopt.
    """
    flat = Flat(problem, x_1)
    if flat.n > LARGEST:
        raise UnsuitedError(f"a dense Jacobian of {flat.m:,} x {flat.n:,} entries in every step")
    low, high = _bounds(problem.g)
    functions = _Functions(flat, problem.g, clock)
    rows = flat.m + functions.balls
    lower = np.zeros(rows)
    lower[flat.equalities :] = -np.inf
    nlp = cyipopt.Problem(
        n=flat.n,
        m=rows,
        problem_obj=functions,
        lb=np.full(flat.n, low),
        ub=np.full(flat.n, high),
        cl=lower,
        cu=np.zeros(rows),
    )
    settings = {"hessian_approximation": "limited-memory", "print_level": 0, "sb": "yes"}
    settings |= {"max_iter": 10_000, "max_cpu_time": 2 * clock.left, "acceptable_iter": 0}
    settings |= {"tol": 1e-12, "dual_inf_tol": 1e-9, "constr_viol_tol": 1e-12}
    settings |= {"compl_inf_tol": 1e-9, "bound_relax_factor": 0.0}
    for name, value in (settings | options).items():
        nlp.add_option(name, value)
    x, _ = nlp.solve(flat.x_1)
    return Answer(flat.tensor(x))


class _Functions:
    def __init__(self, flat: Flat, g: prox.Proximable, clock: RunClock) -> None:
        self.flat, self.g, self.clock = flat, g, clock
        self.balls = int(isinstance(g, prox.NonNegativeBall))

    def objective(self, x: Any) -> float:
        return self.flat.f(x)

    def gradient(self, x: Any) -> Any:
        self.clock.check(self.flat.tensor(x))  # once per accepted iterate
        return self.flat.gradient(x)

    def constraints(self, x: Any) -> Any:
        values = self.flat.constraints(x)
        return np.append(values, x @ x - self.g.radius**2) if self.balls else values

    def jacobian(self, x: Any) -> Any:
        rows = self.flat.jacobian(x)
        return (np.vstack([rows, 2 * x]) if self.balls else rows).ravel()


def _bounds(g: prox.Proximable) -> tuple[float, float]:
    if isinstance(g, prox.Box):
        return float(g.lower), float(g.upper)
    if isinstance(g, prox.NonNegativeBall):
        return 0.0, np.inf
    if isinstance(g, prox.Zero):
        return -np.inf, np.inf
    raise UnsuitedError(f"no form of {type(g).__name__}")
