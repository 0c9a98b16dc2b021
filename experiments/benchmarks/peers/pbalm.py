"""pbalm: a proximal augmented Lagrangian in JAX over alpaqa's PANOC.

Recommended: its defaults. Tuned: no search for a feasible start, the first penalty, a decreasing
inner tolerance, and the classical method without the proximal term. It needs functions in JAX, so
our three problems are written again in JAX; the ball of the clustering becomes an inequality. It
shifts every constraint by its tolerance, so its tolerance is eps/(2√m). Its own counter counts the
gradients, so there is no count for runs that do not end. It needs Python 3.12.
"""

import contextlib
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pbalm
import torch
from torch import Tensor

from experiments.benchmarks.ruler import Answer
from experiments.benchmarks.timed_run import RunClock, UnsuitedError
from experiments.problems.deterministic import Linear, Quadratic, RowSums, Sphere, Spread
from torch_powalm import Problem, prox

jax.config.update("jax_enable_x64", True)

PACKAGE = "pbalm"
ORACLES = ("hand",)
BUSY = 10.0  # its limit is one of wall time and includes the ruler's
METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "pbalm": {
        "recommended": {},
        "penalty 1": {"rho0": 1.0, "nu0": 1.0, "start_feas": False},
        "penalty 1, adaptive": {
            "rho0": 1.0,
            "nu0": 1.0,
            "start_feas": False,
            "adaptive_fp_tol": True,
        },
        "not proximal, penalty 1": {
            "rho0": 1.0,
            "nu0": 1.0,
            "start_feas": False,
            "use_proximal": False,
        },
    }
}


def solve(problem: Problem, x_1: Tensor, eps: float, clock: RunClock, **options: Any) -> Answer:
    """Solve by pbalm.

    Args:
        problem: one of the three problems with hand-written oracles.
        x_1: start.
        eps: tolerance.
        clock: tests the end of every subproblem.
        options: of pbalm.solve.
    """
    shape = tuple(x_1.shape)
    f, h = _objective(problem, shape), _constraint(problem, shape)
    inequality, box = _convex_term(problem.g, x_1.numel())

    def seen(**state: Any) -> None:
        clock.check(torch.from_numpy(np.array(state["x"])).view(shape))

    found = pbalm.Problem(f1=f, f2=box, h=[h], g=inequality, jittable=True, callback=seen)
    m = len(h(jnp.asarray(x_1.reshape(-1).numpy())))
    tol = eps / (2 * m**0.5)
    settings = {"tol": tol, "fp_tol": 0.5 * eps, "verbosity": 0}
    settings |= {
        "max_runtime": BUSY * clock.left / 3600,
        "max_iter_inner": 10_000,
        "max_iter": 1000,
    }
    settings["inner_solver"] = "PANOC"
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        result = pbalm.solve(found, jnp.asarray(x_1.reshape(-1).numpy()), **(settings | options))
    problem.oracle.calls.gradient = problem.oracle.calls.function = int(result.grad_evals[-1])
    return Answer(torch.from_numpy(np.array(result.x)).view(shape))


def _objective(problem: Problem, shape: tuple[int, ...]) -> Any:
    f = problem.oracle.f_by_hand
    if isinstance(f, Quadratic):
        Q, q = jnp.asarray(f.Q.numpy()), jnp.asarray(f.q.numpy())
        return lambda x: 0.5 * x @ (Q @ x) + q @ x
    if isinstance(f, Spread):
        doubled = jnp.asarray(f.doubled.numpy())
        return lambda x: 0.5 * jnp.vdot(x, doubled @ x.reshape(shape))
    raise UnsuitedError("no twin of f in JAX")


def _constraint(problem: Problem, shape: tuple[int, ...]) -> Any:
    c = problem.oracle.blocks[0][1]
    if isinstance(c, Sphere):
        return lambda x: (x @ x - 1).reshape(1)
    if isinstance(c, Linear):
        C, b = jnp.asarray(c.C.numpy()), jnp.asarray(c.b.numpy())
        return lambda x: C @ x - b
    if isinstance(c, RowSums):
        return lambda x: x.reshape(shape) @ x.reshape(shape).sum(0) - 1
    raise UnsuitedError("no twin of the constraints in JAX")


def _convex_term(g: prox.Proximable, n: int) -> tuple[Any, Any]:
    if isinstance(g, prox.Zero):
        return None, None
    if isinstance(g, prox.Box):
        return None, pbalm.Box(lower=np.full(n, float(g.lower)), upper=np.full(n, float(g.upper)))
    if isinstance(g, prox.NonNegativeBall):
        box = pbalm.Box(lower=np.zeros(n), upper=np.full(n, np.inf))
        return [lambda x: (x @ x - g.radius**2).reshape(1)], box
    raise UnsuitedError(f"no form of {type(g).__name__}")
