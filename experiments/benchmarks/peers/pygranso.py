"""PyGRANSO: BFGS-SQP for nonsmooth constrained problems, stopped when a point passes the ruler.

Recommended: its defaults, and a tolerance that never stops a run before the ruler does. Tuned: its
limited memory for large problems (20 pairs), and a first penalty of 0.1. It takes plain torch
functions. Bounds and the ball become constraints, so its penalty function of a nonconvex QP is
unbounded outside the box, and its line search fails there. PyGRANSO 1.2 uses names that numpy 2 no
longer has; they are restored here.
"""

import os
import warnings
from contextlib import redirect_stdout
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.benchmarks.peers.torch_native import evaluate
from experiments.benchmarks.ruler import Answer
from experiments.benchmarks.timed_run import RunClock, UnsuitedError
from torch_powalm import Problem, prox

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import numpy.core.numeric

    numpy.core.numeric.Inf = np.Inf = np.inf  # type: ignore[attr-defined]
    np.NaN = np.nan  # type: ignore[attr-defined]
    from pygranso.pygranso import pygranso
    from pygranso.pygransoStruct import pygransoStruct

PACKAGE = "pygranso"
ORACLES = ("autograd",)
LARGEST = 6000  # unknowns of a dense inverse Hessian
METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "PyGRANSO": {
        "recommended": {},
        "memory 20": {"limited_mem_size": 20},
        "penalty 0.1": {"mu0": 0.1},
    }
}


def solve(problem: Problem, x_1: Tensor, eps: float, clock: RunClock, **options: Any) -> Answer:
    """Solve by PyGRANSO.

    Args:
        problem: the problem, of plain functions.
        x_1: start.
        eps: tolerance.
        clock: tests every iterate.
        options: of PyGRANSO.
    """
    if x_1.numel() > LARGEST and not options.get("limited_mem_size"):
        raise UnsuitedError(f"a dense matrix of {x_1.numel():,} x {x_1.numel():,} entries")

    def functions(variables: Any) -> list[Any]:
        x = variables.x.reshape(x_1.shape)
        values = evaluate(problem, x)
        below = [] if values.B is None else [values.B]
        below += _inequalities(problem.g, x)
        inequalities = pygransoStruct() if below else None
        for i, value in enumerate(below):
            setattr(inequalities, f"c{i}", value)
        equalities = None
        if values.A is not None:
            equalities = pygransoStruct()
            equalities.c0 = values.A
        return [values.f, inequalities, equalities]

    def seen(iteration: int, x: Tensor, *rest: Any) -> bool:
        clock.check(x.reshape(x_1.shape))
        return False

    settings = pygransoStruct()
    settings.torch_device = torch.device("cpu")
    settings.x0 = x_1.reshape(-1, 1)
    settings.maxit, settings.opt_tol, settings.rel_tol = 100_000, 1e-14, 0.0
    settings.viol_eq_tol = settings.viol_ineq_tol = 1e-2 * eps
    settings.print_level, settings.quadprog_info_msg = 0, False
    settings.halt_log_fn = seen
    for name, value in options.items():
        setattr(settings, name, value)
    with warnings.catch_warnings(), open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        warnings.simplefilter("ignore")
        found = pygranso(
            var_spec={"x": [x_1.numel(), 1]}, combined_fn=functions, user_opts=settings
        )
    return Answer(found.final.x.reshape(x_1.shape))


def _inequalities(g: prox.Proximable, x: Tensor) -> list[Tensor]:
    if isinstance(g, prox.Box):
        return [x.reshape(-1) - float(g.upper), float(g.lower) - x.reshape(-1)]
    if isinstance(g, prox.NonNegativeBall):
        return [-x.reshape(-1), (x.square().sum() - g.radius**2).reshape(1)]
    if isinstance(g, prox.Zero):
        return []
    raise UnsuitedError(f"no form of {type(g).__name__}")
