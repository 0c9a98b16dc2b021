"""A problem on flat float64 arrays, as the numpy-based peers need it.

Our hand-written oracles are written again in numpy, whose calls cost less than torch's on small
vectors; the product with D stays in torch, which computes it faster.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.problems.deterministic import Linear, Quadratic, RowSums, Sphere, Spread
from torch_powalm import Problem


class Flat:
    """Values and derivatives at an array x; the last two points are stored.

    Args:
        problem: the problem.
        x_1: start, in the shape of the unknown.
    """

    def __init__(self, problem: Problem, x_1: Tensor) -> None:
        self.problem, self.shape, self.n = problem, x_1.shape, x_1.numel()
        self.x_1 = x_1.reshape(-1).numpy()
        at = problem.oracle.at(x_1)
        self.m = len(at.r)
        self.equalities = at.sizes[0] if "equality" in problem.oracle.constraints else 0
        self._twin = _Twin.of(problem)
        self._kept: list[tuple[Any, Any]] = []
        self._jacobian: Any = None

    def at(self, x: Any) -> Any:
        """The evaluated point."""
        for array, point in self._kept:
            if np.array_equal(array, x):
                return point
        array = np.array(x, dtype=np.float64)
        point: Any
        if self._twin is not None:
            point = self._twin.at(array.reshape(self.shape))
        else:
            with torch.no_grad():
                point = _Plain(self.problem, torch.from_numpy(array).view(self.shape))
        self._kept = [(array, point), *self._kept[:1]]
        return point

    def f(self, x: Any) -> float:
        """Value of f."""
        return float(self.at(x).f)

    def constraints(self, x: Any) -> Any:
        """The constraint vector."""
        return self.at(x).r

    def gradient(self, x: Any, y: Any = None) -> Any:
        """∇f(x) + Jᵀy."""
        at = self.at(x)
        return (at.grad_f if y is None else at.gradient(y)).reshape(-1)

    def pull(self, x: Any, y: Any) -> Any:
        """Jᵀy without ∇f."""
        return self.gradient(x, y) - self.gradient(x)

    def jacobian(self, x: Any) -> Any:
        """The m × n Jacobian, all rows in one batch; for linear constraints it is computed once."""
        if self._jacobian is not None:
            return self._jacobian
        blocks = self.problem.oracle.blocks
        point, rows = self.tensor(x), []
        for plain, by_hand in blocks:
            if by_hand is not None:
                units = torch.eye(self.m, dtype=point.dtype)
                rows.append(torch.vmap(lambda w, c=by_hand: c.vjp(point, w))(units))
            elif plain is not None:
                rows.append(torch.func.jacrev(plain)(point))
        jacobian = torch.cat([row.reshape(len(row), -1) for row in rows]).numpy()
        if all(isinstance(by_hand, Linear) for _, by_hand in blocks):
            self._jacobian = jacobian
        return jacobian

    def tensor(self, x: Any) -> Tensor:
        """The array in the shape of x_1."""
        return torch.from_numpy(np.array(x, dtype=np.float64)).view(self.shape)


class _Plain:
    """A point of a problem of plain functions.

    As for the problem's own points, ∇f + Jᵀy uses the graph up, and the next call evaluates again.
    """

    def __init__(self, problem: Problem, x: Tensor) -> None:
        self._oracle = problem.oracle
        self._leaf = x.detach().requires_grad_()
        self._forward()

    def _forward(self) -> None:
        oracle = self._oracle
        oracle.calls.function += 1
        oracle.calls.constraint += 1
        with torch.enable_grad():
            f_x = oracle.f(self._leaf)  # type: ignore[misc]
            values = [plain(self._leaf) for plain, _ in oracle.blocks]  # type: ignore[misc]
        self.f = f_x.item()
        self.r = torch.cat([value.detach() for value in values]).numpy()
        self._graph: tuple[Tensor, list[Tensor]] | None = (f_x, values)

    @property
    def grad_f(self) -> Any:
        """∇f(x) alone, without a pass through the constraints."""
        if self._graph is None:
            return self.gradient(np.zeros(len(self.r)))
        self._oracle.calls.gradient += 1
        return torch.autograd.grad(self._graph[0], self._leaf, retain_graph=True)[0].numpy()

    def gradient(self, y: Any) -> Any:
        if self._graph is None:
            self._forward()
        f_x, values = self._graph  # type: ignore[misc]
        self._oracle.calls.gradient += 1
        parts = torch.split(torch.from_numpy(np.array(y)), [len(value) for value in values])
        with torch.enable_grad():
            products = [torch.dot(value, part) for value, part in zip(values, parts, strict=True)]
        self._graph = None
        return torch.autograd.grad([f_x, *products], self._leaf)[0].numpy()


class _Twin:
    """Our hand-written oracles in numpy."""

    def __init__(self, problem: Problem, f: Any, constraint: Any) -> None:
        self.calls, self._f, self._constraint = problem.oracle.calls, f, constraint

    @classmethod
    def of(cls, problem: Problem) -> "_Twin | None":
        """The twin; None if there is none."""
        f, blocks = problem.oracle.f_by_hand, problem.oracle.blocks
        if type(f) not in _VALUES or len(blocks) != 1 or type(blocks[0][1]) not in _BLOCKS:
            return None
        return cls(problem, _VALUES[type(f)](f), _BLOCKS[type(blocks[0][1])](blocks[0][1]))

    def at(self, x: Any) -> "_TwinPoint":
        self.calls.function += 1
        self.calls.gradient += 1
        return _TwinPoint(x, *self._f(x), *self._constraint(x))


class _TwinPoint(NamedTuple):
    x: Any
    f: float
    grad_f: Any
    r: Any
    pull: Callable[[Any], Any]

    def gradient(self, y: Any) -> Any:
        return self.grad_f + self.pull(y)


def _quadratic(f: Any) -> Callable[[Any], tuple[float, Any]]:
    Q, q = f.Q.numpy(), f.q.numpy()

    def value_and_grad(x: Any) -> tuple[float, Any]:
        Qx = Q @ x
        return 0.5 * (x @ Qx) + q @ x, Qx + q

    return value_and_grad


def _spread(f: Any) -> Callable[[Any], tuple[float, Any]]:
    def value_and_grad(X: Any) -> tuple[float, Any]:
        grad = (f.doubled @ torch.from_numpy(X)).numpy()
        return 0.5 * np.vdot(X, grad), grad

    return value_and_grad


def _sphere(c: Any) -> Callable[[Any], tuple[Any, Callable[[Any], Any]]]:
    return lambda x: (np.array([x @ x - 1]), lambda w: 2 * w * x)


def _linear(c: Any) -> Callable[[Any], tuple[Any, Callable[[Any], Any]]]:
    C, b = c.C.numpy(), c.b.numpy()
    return lambda x: (C @ x - b, lambda w: w @ C)


def _row_sums(c: Any) -> Callable[[Any], tuple[Any, Callable[[Any], Any]]]:
    def values(X: Any) -> tuple[Any, Callable[[Any], Any]]:
        sums = X.sum(0)
        return X @ sums - 1, lambda w: np.outer(w, sums) + w @ X

    return values


_VALUES: dict[type, Callable[[Any], Any]] = {Quadratic: _quadratic, Spread: _spread}
_BLOCKS: dict[type, Callable[[Any], Any]] = {
    Sphere: _sphere,
    Linear: _linear,
    RowSums: _row_sums,
}
