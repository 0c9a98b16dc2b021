"""The same measure of a point for every method.

A point is first moved into dom g. Then

    primal     ‖(A(x), max(B(x), 0))‖
    dual       the larger of dist(−∇f(x) − Jᵀy, ∂g(x)) and the complementarity of y: for every
               inequality the smaller of |y B| and |min(y, −B)|, since some methods control one
               and some the other

The multipliers y are the method's own if it has some and they reach the tolerance, else the best
ones by least squares: LSMR over the coordinates on which ∂g(x) is a point (with the ray of a ball
as one more unknown), then L-BFGS-B on the exact distance, with y ≥ 0 for inequalities and y = 0 for
inactive ones (by 0.01, or by the tolerance). Methods that leave coordinates close to a bound
instead of on it are measured a second time with these coordinates on the bound. The best result
counts.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.sparse.linalg import LinearOperator, lsmr
from torch import Tensor

from torch_powalm import Problem, prox

NEAR = 1e-6  # coordinates this close to a bound may be put on it
ACTIVE = 1e-2  # inequalities this close to 0 may have multipliers


class Answer(NamedTuple):
    """A point in the shape of x_1, and multipliers (equalities first) if the method has some."""

    x: Tensor
    y: Tensor | None = None


class Measured(NamedTuple):
    """Residuals and objective of a point; `multiplier` says where y came from."""

    primal: float
    dual: float
    objective: float
    multiplier: str


def measure(problem: Problem, answer: Answer, eps: float) -> Measured:
    """The residuals of a point, with the better of its own and the least-squares multipliers."""
    if not answer.x.isfinite().all():
        return Measured(np.inf, np.inf, np.nan, "none")
    x = problem.g.prox(answer.x, 1.0)
    points = [x]
    if not torch.equal(near := _on_bounds(problem.g, x), x):
        points.append(near)
    return min((_measure(problem, x, answer.y, eps) for x in points), key=_worst)


def _measure(problem: Problem, x: Tensor, y: Tensor | None, eps: float) -> Measured:
    at = problem.oracle.at(x)
    objective = at.f + problem.g.value(x)
    found = []

    def add(y: Tensor, multiplier: str) -> bool:
        residuals = problem.residuals(x, y)
        dual = max(residuals.stationarity, _complementarity(problem, at, y))
        found.append(Measured(residuals.primal, dual, objective, multiplier))
        return _worst(found[-1]) <= eps

    if y is not None and add(y, "own"):
        return found[0]
    add(best_multipliers(problem, x, eps), "least squares")
    if problem.inequality(at) is not None:
        add(best_multipliers(problem, x, eps, eps), "least squares")
    return min(found, key=_worst)


def _complementarity(problem: Problem, at: Any, y: Tensor) -> float:
    inequality = problem.inequality(at)
    if inequality is None:
        return 0.0
    y, B = y[inequality], at.r[inequality]
    both = torch.minimum((y * B).abs(), torch.minimum(y, -B).abs())
    return torch.maximum(both, -y).amax().item()


def _worst(measured: Measured) -> float:
    value = max(measured.primal, measured.dual)
    return value if value == value else np.inf


def best_multipliers(problem: Problem, x: Tensor, eps: float, active: float = ACTIVE) -> Tensor:
    """The y of the smallest distance dist(−∇f(x) − Jᵀy, ∂g(x)), 0 where B < −active."""
    products = _Products(problem, x, active)
    shape, m = (x.numel(), products.m + 1), products.m
    free, ray = _face(problem.g, x)
    used = products.active

    def forward(z: Any) -> Any:
        y = torch.from_numpy(z[:m] * used)
        return ((products.pull(y) + z[m] * ray) * free).reshape(-1).numpy()

    def adjoint(d: Any) -> Any:
        v = torch.from_numpy(d).reshape(x.shape) * free
        return np.append(products.push(v) * used, (ray * v).sum().item())

    operator = LinearOperator(shape, matvec=forward, rmatvec=adjoint, dtype=np.float64)
    right = -(products.grad_f * free).reshape(-1).numpy()
    z = lsmr(operator, right, atol=1e-14, btol=1e-14, conlim=1e12, maxiter=4 * m + 100)[0]
    y = z[:m] * used
    y[products.inequality] = np.maximum(y[products.inequality], 0.0)
    if problem.g.distance(x, products.grad_f + products.pull(torch.from_numpy(y))) <= eps:
        return torch.from_numpy(y)
    low = np.where(products.inequality, 0.0, -np.inf)
    high = np.where(used > 0, np.inf, 0.0)
    bounds = list(zip(np.minimum(low, high), high, strict=True))
    options = {"maxiter": 300, "ftol": 0.0, "gtol": 1e-2 * eps**2}
    found = minimize(
        _half_squared_distance,
        y,
        args=(problem, x, products),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options=options,
    )
    return torch.from_numpy(np.array(found.x))


def _half_squared_distance(
    y: Any, problem: Problem, x: Tensor, products: "_Products"
) -> tuple[float, Any]:
    d = _shortest(problem.g, x, products.grad_f + products.pull(torch.from_numpy(y.copy())))
    return 0.5 * (d * d).sum().item(), products.push(d)


class _Products:
    """Jᵀw and Jd at a point; Jᵀw is linear in w, so the gradient of ⟨Jᵀw, d⟩ in w is Jd."""

    def __init__(self, problem: Problem, x: Tensor, active: float) -> None:
        self.oracle, self.x = problem.oracle, x
        at = problem.oracle.at(x)
        self.sizes, self.m = at.sizes, len(at.r)
        self.grad_f = at.gradient(torch.zeros_like(at.r))
        inequality = problem.inequality(at)
        self.inequality = np.zeros(self.m, bool) if inequality is None else inequality.numpy()
        inactive = self.inequality & (at.r.detach().numpy() < -active)
        self.active = (~inactive).astype(float)
        self._w = torch.zeros(self.m, dtype=x.dtype, requires_grad=True)
        with torch.enable_grad():
            self._pulled = self._pull(self._w)

    def pull(self, w: Tensor) -> Tensor:
        """Jᵀw."""
        return self._pull(w).detach()

    def push(self, d: Tensor) -> Any:
        """Jd."""
        with torch.enable_grad():
            (pushed,) = torch.autograd.grad((self._pulled * d).sum(), self._w, retain_graph=True)
        return pushed.numpy()

    def _pull(self, w: Tensor) -> Tensor:
        total = torch.zeros_like(self.x)
        for (plain, by_hand), part in zip(
            self.oracle.blocks, torch.split(w, self.sizes), strict=True
        ):
            if by_hand is not None:
                total = total + by_hand.vjp(self.x, part)
            elif plain is not None:
                with torch.enable_grad():
                    leaf = self.x.detach().requires_grad_()
                    product = torch.dot(plain(leaf), part)
                    (pulled,) = torch.autograd.grad(product, leaf, create_graph=w.requires_grad)
                total = total + pulled
        return total


def _face(g: prox.Proximable, x: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates on which ∂g(x) is a point, as ones, and the ray of ∂g(x), 0 if it has none."""
    none = torch.zeros_like(x)
    if isinstance(g, prox.Zero):
        return torch.ones_like(x), none
    if isinstance(g, prox.Box):
        return ((x > g.lower) & (x < g.upper)).to(x.dtype), none
    if isinstance(g, prox.NonNegativeBall):
        return (x > 0).to(x.dtype), x if _on_sphere(g, x) else none
    raise TypeError(f"g must be Zero, Box or NonNegativeBall, got {g!r}")


def _shortest(g: prox.Proximable, x: Tensor, v: Tensor) -> Tensor:
    """The shortest vector of v + ∂g(x)."""
    if isinstance(g, prox.Box):
        v = torch.where(x <= g.lower, v.clamp(max=0.0), v)
        return torch.where(x >= g.upper, v.clamp(min=0.0), v)
    if isinstance(g, prox.NonNegativeBall):
        v = torch.where(x <= 0, v.clamp(max=0.0), v)
        if _on_sphere(g, x):
            v = v + max(0.0, -((v * x).sum() / (x * x).sum()).item()) * x
    return v


def _on_bounds(g: prox.Proximable, x: Tensor) -> Tensor:
    """Put coordinates close to a bound on it, and scale a norm close to the radius to it."""
    if isinstance(g, prox.Box):
        lower, upper = torch.as_tensor(g.lower), torch.as_tensor(g.upper)
        x = torch.where(x <= lower + NEAR * (1 + lower.abs()), lower.to(x), x)
        return torch.where(x >= upper - NEAR * (1 + upper.abs()), upper.to(x), x)
    if isinstance(g, prox.NonNegativeBall):
        x = torch.where(x <= NEAR * x.max(), 0.0, x)
        if torch.linalg.vector_norm(x).item() >= g.radius * (1 - NEAR):
            x = x * (g.radius / torch.linalg.vector_norm(x).item())
    return x


def _on_sphere(g: prox.NonNegativeBall, x: Tensor) -> bool:
    return torch.linalg.vector_norm(x).item() >= g.radius * (1 - 1e-12)
