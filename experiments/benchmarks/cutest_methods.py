"""The methods of the CUTEst comparison, each with its defaults and tolerances of 1e-4."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from experiments.benchmarks.cutest_problems import Cutest


class Claim(NamedTuple):
    """What a method returns: x, a multiplier of every row or None, and what it says of itself."""

    x: Any
    y: Any
    status: str
    success: bool


def ours(cutest: Cutest, eps: float, seconds: float, nu: float) -> Claim:
    """power_alm with its defaults, on a clock of CPU time, which this child process may set."""
    from torch_powalm import power_alm

    time.perf_counter = time.process_time  # type: ignore[assignment, attr-defined]
    x_1 = torch.from_numpy(cutest.x_1.copy())
    found = power_alm(cutest.problem(), x_1, nu=nu, eps_phi=eps, eps_A=eps, max_seconds=seconds)
    y = cutest.row_multipliers(found.y.numpy())
    return Claim(found.x.numpy(), y, found.status.value, found.converged)


def ipopt(cutest: Cutest, eps: float, seconds: float) -> Claim:
    """Ipopt with L-BFGS."""
    import cyipopt

    m = cutest.m

    class Functions:
        def objective(self, x: Any) -> float:
            return cutest.f(x)[0]

        def gradient(self, x: Any) -> Any:
            return cutest.f(x)[1]

        def constraints(self, x: Any) -> Any:
            return cutest.c(x)[0] if m else np.zeros(0)

        def jacobian(self, x: Any) -> Any:
            return cutest.c(x)[1].ravel() if m else np.zeros(0)

    lower, upper = (np.clip(b, -1e20, 1e20) for b in (cutest.c_lower, cutest.c_upper))
    x_lower, x_upper = (np.clip(b, -1e20, 1e20) for b in (cutest.x_lower, cutest.x_upper))
    nlp = cyipopt.Problem(
        n=cutest.n, m=m, problem_obj=Functions(), lb=x_lower, ub=x_upper, cl=lower, cu=upper
    )
    options = {"hessian_approximation": "limited-memory", "print_level": 0, "sb": "yes"}
    for name, value in (options | {"tol": eps, "max_cpu_time": seconds}).items():
        nlp.add_option(name, value)
    x, info = nlp.solve(cutest.x_1)
    return Claim(x, info["mult_g"], str(info["status_msg"])[2:60], info["status"] in (0, 1, 6))


def slsqp(cutest: Cutest, eps: float, seconds: float, method: str = "SLSQP") -> Claim:
    """SLSQP or trust-constr of SciPy."""
    from scipy.optimize import Bounds, NonlinearConstraint, minimize

    start, last = time.process_time(), [cutest.x_1]

    def seen(x: Any, state: Any = None) -> None:
        last[0] = np.array(x)

    def f(x: Any) -> tuple[float, Any]:
        if time.process_time() - start > seconds:
            raise TimeoutError
        return cutest.f(x)

    rows = []
    if cutest.m:
        both = cutest.c_lower, cutest.c_upper
        rows = [NonlinearConstraint(lambda x: cutest.c(x)[0], *both, lambda x: cutest.c(x)[1])]
    try:
        found = minimize(
            f,
            cutest.x_1,
            jac=True,
            method=method,
            bounds=Bounds(cutest.x_lower, cutest.x_upper),
            constraints=rows,
            callback=seen,
        )
    except TimeoutError:
        return Claim(last[0], None, "time", False)
    return Claim(found.x, None, str(found.message)[:60], bool(found.success))


def alpaqa(cutest: Cutest, eps: float, seconds: float) -> Claim:
    """The augmented Lagrangian of alpaqa with PANOC."""
    from datetime import timedelta

    import alpaqa as pa

    start, last = time.process_time(), [cutest.x_1]

    class Wrapped(pa.BoxConstrProblem):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(cutest.n, cutest.m)
            self.variable_bounds.lower = cutest.x_lower
            self.variable_bounds.upper = cutest.x_upper
            self.general_bounds.lower = cutest.c_lower
            self.general_bounds.upper = cutest.c_upper

        def eval_objective(self, x: Any) -> float:
            if time.process_time() - start > seconds:  # its own limit is one of wall time
                raise TimeoutError
            last[0] = np.array(x)
            return cutest.f(x)[0]

        def eval_objective_gradient(self, x: Any, grad: Any) -> None:
            grad[:] = cutest.f(x)[1]

        def eval_constraints(self, x: Any, values: Any) -> None:
            if cutest.m:
                values[:] = cutest.c(x)[0]

        def eval_constraints_gradient_product(self, x: Any, y: Any, out: Any) -> None:
            out[:] = y @ cutest.c(x)[1] if cutest.m else 0.0

    limit = timedelta(seconds=100 * seconds)
    alm = {"tolerance": eps, "dual_tolerance": eps / max(1, cutest.m) ** 0.5, "max_time": limit}
    alm |= {"max_iter": 200}
    inner = {"max_iter": 10_000, "max_time": limit, "stop_crit": pa.ApproxKKT2}
    solver = pa.ALMSolver(alm, pa.PANOCSolver(inner, {"memory": 10}))
    try:
        x, y, stats = solver(pa.Problem(Wrapped()), x=cutest.x_1, y=np.zeros(cutest.m))
    except TimeoutError:
        return Claim(last[0], None, "time", False)
    status = str(stats["status"]).split(".")[-1]
    return Claim(x, y, status, status == "Converged")


METHODS: dict[str, Callable[[Cutest, float, float], Claim]] = {
    "ours ν = 1": lambda cutest, eps, s: ours(cutest, eps, s, 1.0),
    "ours ν = 0.8": lambda cutest, eps, s: ours(cutest, eps, s, 0.8),
    "ours ν = 0.5": lambda cutest, eps, s: ours(cutest, eps, s, 0.5),
    "Ipopt": ipopt,
    "alpaqa": alpaqa,
    "SLSQP": slsqp,
    "trust-constr": lambda cutest, eps, s: slsqp(cutest, eps, s, "trust-constr"),
}
