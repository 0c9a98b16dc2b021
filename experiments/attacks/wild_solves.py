"""Solves of wild functions: whatever these do, a solve ends with an honest status.

Functions that are nan, inf or discontinuous somewhere, that raise outside their domain, or that
have huge, tiny or constant values. No error may come out but the user's own, and that of a start
where a function is not finite. A CONVERGED point must satisfy the residuals recomputed here,
INFEASIBLE must not be said of consistent linear constraints or a feasible point, nor UNBOUNDED of
a function that has a lower bound.
"""

import math
import random
import time
import warnings
from typing import Any

import torch
from torch import Tensor

from experiments.attacks.findings import FindingError
from experiments.attacks.wild_functions import CONSTRAINTS, F64, OBJECTIVES, UserError, Wild
from torch_powalm import Problem, Solution, Status, power_alm, prox, solvers

EPS, SECONDS = 1e-4, 5.0
SOLVERS: dict[str, Any] = {
    "default": None,
    "PANOC": solvers.PANOC(),
    "UPFAG": solvers.UPFAG(),
    "spectral": solvers.Spectral(),
    "adaptive": solvers.AdaptiveGradient(),
    "accelerated": solvers.AcceleratedGradient(),
    "proximal point": solvers.ProximalPoint(rho=1.0),
    "SGD": solvers.FromTorch(torch.optim.SGD, lr=1e-3),
    "Adam": solvers.FromTorch(torch.optim.Adam, lr=1e-2),
}


class WildProblem:
    """A random problem of such functions, and a random solve.

    Args:
        rng: source of randomness.
    """

    def __init__(self, rng: random.Random) -> None:
        pick = rng.choice
        self.n = pick([1, 2, 2, 3, 5, 60])
        names = [pick(list(OBJECTIVES)), *(pick([None, *CONSTRAINTS]) for _ in range(2))]
        objective, self.bounded = OBJECTIVES[names[0]]
        self.f = Wild(objective, rng)
        self.equality, self.inequality = (
            None if name is None else Wild(CONSTRAINTS[name][0], rng) for name in names[1:]
        )
        generator = torch.Generator().manual_seed(rng.randrange(2**31))
        self.x_1 = pick([0.0, 0.5, 1.0, 10.0]) * torch.randn(self.n, generator=generator, dtype=F64)
        if rng.random() < 0.4:
            self.x_1 = self.x_1.abs() + 0.01
        self.box = pick([None, None, (-1.0, 1.0), (0.0, math.inf)])
        self.solver = pick(list(SOLVERS)) if rng.random() < 0.6 else "default"
        self.settings: dict[str, Any] = {"nu": pick([1.0, 1.0, 0.8, 0.5, 0.2])}
        if rng.random() < 0.3:
            self.settings |= {"sigma": pick(["paper", "sqrt", "pi"]), "omega": pick([1.0, 2.0])}
        if rng.random() < 0.2:
            self.settings |= {"beta_1": pick([1e-8, 1.0, 1e8])}
        given = [name for name in names[1:] if name is not None]
        clean = not any(c.faults for c in self.functions[1:])
        self.solvable = clean and self.box is None and all(CONSTRAINTS[c][1] for c in given)
        self.names = names

    @property
    def functions(self) -> list[Wild]:
        """Objective and constraints."""
        return [w for w in (self.f, self.equality, self.inequality) if w is not None]

    def solve(self, **more: Any) -> Solution:
        """Solve."""
        g = None if self.box is None else prox.Box(*self.box)
        problem = Problem(self.f, equality=self.equality, inequality=self.inequality, g=g)
        limits: dict[str, Any] = {"max_gradients": 300, "max_outer": 40, "max_seconds": SECONDS}
        settings = {"solver": SOLVERS[self.solver], "eps_phi": EPS, "eps_A": EPS} | limits
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return power_alm(problem, self.x_1, **settings, **self.settings, **more)

    def residuals(self, x: Tensor, y: Tensor) -> tuple[float, float, float]:
        """Return primal and dual residual, and the size of what was added up for them."""
        leaf = x.detach().clone().requires_grad_()
        f, parts = self.f(leaf), []
        rows = [c(leaf) for c in (self.equality, self.inequality) if c is not None]
        parts = list(y.split([len(r) for r in rows]))
        grads = [torch.autograd.grad(f, leaf, retain_graph=True)[0]]
        for r, part in zip(rows, parts, strict=True):
            grads.append(torch.autograd.grad(r @ part, leaf, retain_graph=True)[0])
        v, size = -sum(grads), float(sum(g.norm() for g in grads))
        if self.box is not None:  # dist(v, normal cone of the box)
            low, high = self.box
            v = torch.where(x <= low, v.clamp(min=0), torch.where(x >= high, v.clamp(max=0), v))
        dual, violations = float(v.norm()), []
        if self.equality is not None:
            violations.append(rows[0].detach())
        if self.inequality is not None:
            b, y_b = rows[-1].detach(), parts[-1]
            violations.append(b.clamp(min=0))
            dual = max(dual, float((y_b * b).abs().max()), float((-y_b).max()))
        primal = float(torch.cat(violations).norm()) if violations else 0.0
        return primal, dual, size

    def __str__(self) -> str:
        told = [f"{n}: {w}" for n, w in zip(filter(None, self.names), self.functions, strict=True)]
        return f"{told}, n {self.n}, box {self.box}, {self.solver}, {self.settings}"


def attack_wild(rng: random.Random) -> str:
    """Solve one wild problem."""
    wild = WildProblem(rng)
    x_1, start = wild.x_1.clone(), time.monotonic()
    try:
        solution = wild.solve()
    except UserError:
        if not any("user" in w.faults for w in wild.functions):
            raise
        return "the user's own error"
    except (ValueError, ArithmeticError) as error:
        if "must be finite at x_1" in str(error):
            return "not finite at the start"
        if str(error) == "outside of the domain" and all(w.calls <= 1 for w in wild.functions):
            return "outside of the domain at the start"
        raise FindingError(f"{type(error).__name__} {error}; {wild}") from error
    except Exception as error:
        raise FindingError(f"{type(error).__name__} {error}; {wild}") from error
    try:
        check(wild, solution)
    except FindingError as error:
        raise FindingError(f"{error}; {wild}") from error
    if not torch.equal(x_1, wild.x_1):
        raise FindingError(f"the start has changed; {wild}")
    if time.monotonic() - start > SECONDS + 2:
        raise FindingError(f"took {time.monotonic() - start:.1f} s; {wild}")
    return solution.status.value


def check(wild: WildProblem, solution: Solution) -> None:
    """Raise unless the status and the numbers of a solution are true."""
    x, y, status = solution.x, solution.y, solution.status
    if not bool(x.isfinite().all()) or x.shape != wild.x_1.shape:
        raise FindingError(f"x is {x}, with the status {status}")
    if not bool(y.isfinite().all()):
        raise FindingError(f"y is {y}, with the status {status}")
    if wild.box is not None and bool(((x < wild.box[0]) | (x > wild.box[1])).any()):
        raise FindingError(f"x is outside of its box, with the status {status}")
    if (status is Status.CONVERGED) != (not solution.missing) and status is Status.CONVERGED:
        raise FindingError(f"converged, but {solution.missing}")
    if status is Status.CONVERGED and all(w.steady for w in wild.functions):
        primal, dual, size = wild.residuals(x, y)
        if not (primal <= EPS * (1 + 1e-6) and dual <= EPS * (1 + 1e-6) + 1e-12 * size):
            raise FindingError(f"converged with residuals of {primal:.2g} and {dual:.2g}")
    if status is Status.UNBOUNDED and wild.bounded and not _lowers(wild.f):
        raise FindingError("unbounded, but the objective has a lower bound")
    if status is Status.INFEASIBLE and (wild.solvable or solution.residuals.primal <= EPS):
        raise FindingError(f"infeasible, with a violation of {solution.residuals.primal:.2g}")


def _lowers(f: Wild) -> bool:
    """Whether faults may make values arbitrarily small."""
    return bool({"beyond", "now and then", "never again"} & set(f.faults)) and f.value < 0
