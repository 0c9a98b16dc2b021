"""alpaqa: its augmented Lagrangian with PANOC or ZeroFPR, in C++ over our oracles.

Recommended: its defaults, except for the limits of 100 iterations, and with the criterion
ApproxKKT2, whose norm is that of the ruler. It tests constraints entry by entry, so its tolerance
is eps/√m. Tuned: memory of L-BFGS 10 or 50, first penalty 1 or balanced with f, tolerance of the
constraints 3 times larger, decrease of the inner tolerance 0.1 or 0.3. The augmented Lagrangian and
its gradient are one call, and a point whose value was computed is not evaluated again for its
gradient.
"""

from datetime import timedelta
from typing import Any

import alpaqa as pa
import numpy as np
from torch import Tensor

from experiments.benchmarks.peers.flat import Flat
from experiments.benchmarks.ruler import Answer
from experiments.benchmarks.timed_run import RunClock, UnsuitedError
from torch_powalm import Problem, prox

PACKAGE = "alpaqa"
ORACLES = ("hand", "autograd")
BUSY = 2.0  # its limit is one of wall time, which passes faster on a busy machine
METHODS: dict[str, dict[str, dict[str, Any]]] = {
    f"alpaqa {inner}": {
        "recommended": {"inner": inner},
        "balanced": {"inner": inner, "penalty": 0.0},
        "balanced, memory 50": {"inner": inner, "penalty": 0.0, "memory": 50},
        "balanced, constraints 3x": {"inner": inner, "penalty": 0.0, "slack": 3.0},
        "balanced, constraints 3x, fall 0.3": {
            "inner": inner,
            "penalty": 0.0,
            "slack": 3.0,
            "fall": 0.3,
        },
    }
    for inner in ("PANOC", "ZeroFPR")
}


def solve(
    problem: Problem,
    x_1: Tensor,
    eps: float,
    clock: RunClock,
    *,
    inner: str,
    memory: int = 10,
    penalty: float = 1.0,
    slack: float = 1.0,
    fall: float = 0.1,
) -> Answer:
    """Solve by ALM.

    Args:
        problem: the problem.
        x_1: start.
        eps: tolerance.
        clock: gives the time left.
        inner: "PANOC" or "ZeroFPR".
        memory: of L-BFGS.
        penalty: first penalty; 0 to let it balance the penalty with f.
        slack: the tolerance of a constraint is slack · eps/√m, at most eps.
        fall: factor of the inner tolerance from one subproblem to the next.
    """
    flat = Flat(problem, x_1)
    alm = {
        "tolerance": eps,
        "dual_tolerance": min(eps, slack * eps / flat.m**0.5),
        "initial_penalty": penalty,
        "tolerance_update_factor": fall,
        "max_iter": 200,
        "max_time": timedelta(seconds=BUSY * clock.left),
    }
    options = {
        "max_iter": 10_000,
        "max_time": timedelta(seconds=BUSY * clock.left),
        "stop_crit": pa.ApproxKKT2,
    }
    kind = {"PANOC": pa.PANOCSolver, "ZeroFPR": pa.ZeroFPRSolver}[inner]
    if isinstance(problem.g, prox.NonNegativeBall):
        solver = kind(options, pa.LBFGSDirection({"memory": memory}))
        wrapped: Any = _InBall(flat, problem.g)
    else:
        solver = kind(options, {"memory": memory})
        wrapped = _InBox(flat, problem.g)
    x, y, _ = pa.ALMSolver(alm, solver)(pa.Problem(wrapped), x=flat.x_1, y=np.zeros(flat.m))
    return Answer(flat.tensor(x), clock.task.x_1.new_tensor(y))


class _InBox(pa.BoxConstrProblem):  # type: ignore[misc]
    """f, A, B and a box."""

    def __init__(self, flat: Flat, g: prox.Proximable) -> None:
        super().__init__(flat.n, flat.m)
        self.flat = flat
        if isinstance(g, prox.Box):
            self.variable_bounds.lower = np.full(flat.n, float(g.lower))
            self.variable_bounds.upper = np.full(flat.n, float(g.upper))
        elif not isinstance(g, prox.Zero | prox.NonNegativeBall):
            raise UnsuitedError(f"no prox of {type(g).__name__}")
        lower = np.zeros(flat.m)
        lower[flat.equalities :] = -np.inf
        self.general_bounds.lower, self.general_bounds.upper = lower, np.zeros(flat.m)

    def eval_objective(self, x: Any) -> float:
        return self.flat.f(x)

    def eval_objective_gradient(self, x: Any, grad: Any) -> None:
        grad[:] = self.flat.gradient(x)

    def eval_constraints(self, x: Any, values: Any) -> None:
        values[:] = self.flat.constraints(x)

    def eval_constraints_gradient_product(self, x: Any, y: Any, out: Any) -> None:
        out[:] = self.flat.pull(x, y)

    def eval_lagrangian_gradient(self, x: Any, y: Any, grad: Any, work: Any) -> None:
        grad[:] = self.flat.gradient(x, y)

    # Without the methods below, alpaqa would combine those above, in more calls.

    def eval_augmented_lagrangian(self, x: Any, y: Any, penalty: Any, y_hat: Any) -> float:
        at = self.flat.at(x)
        shifted = at.r + y / penalty
        if self.flat.equalities < self.flat.m:
            inequalities = shifted[self.flat.equalities :]
            np.maximum(inequalities, 0.0, out=inequalities)
        np.multiply(penalty, shifted, out=y_hat)
        return float(at.f + 0.5 * np.dot(shifted, y_hat))

    def eval_augmented_lagrangian_and_gradient(
        self, x: Any, y: Any, penalty: Any, grad: Any, work_n: Any, work_m: Any
    ) -> float:
        value = self.eval_augmented_lagrangian(x, y, penalty, work_m)
        grad[:] = self.flat.gradient(x, work_m)
        return value

    def eval_augmented_lagrangian_gradient(
        self, x: Any, y: Any, penalty: Any, grad: Any, work_n: Any, work_m: Any
    ) -> None:
        self.eval_augmented_lagrangian(x, y, penalty, work_m)
        grad[:] = self.flat.gradient(x, work_m)


class _InBall(_InBox):
    """f, A, B and the nonnegative part of a ball."""

    def __init__(self, flat: Flat, g: prox.NonNegativeBall) -> None:
        super().__init__(flat, g)
        self.radius = g.radius

    def eval_proximal_gradient_step(
        self, step: float, x: Any, grad: Any, x_hat: Any, p: Any
    ) -> float:
        np.maximum(x - step * grad, 0.0, out=x_hat)
        norm = np.dot(x_hat, x_hat) ** 0.5
        if norm > self.radius:
            x_hat *= self.radius / norm
        np.subtract(x_hat, x, out=p)
        return 0.0
