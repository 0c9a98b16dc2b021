"""Values and gradients of f and the constraints at a point, by autograd or hand-written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import copy

import torch
from torch import Tensor

from torch_powalm.solving.functions import Calls, Constraint, Function, Objective, dense_rows

__all__ = ["Calls", "Constraint", "Function", "Objective", "Oracle", "Point"]

# What math.sqrt, math.log or a division raise; torch returns nan or inf there.
OUTSIDE_DOMAIN = (ArithmeticError, ValueError)


class Oracle:
    """f and the constraints, with counts of their evaluations.

    Args:
        f: function of x that returns a scalar, or an `Objective`.
        constraints: functions of x that return vectors, or `Constraint` objects, by name.
    """

    def __init__(
        self, f: Function | Objective, constraints: Mapping[str, Function | Constraint]
    ) -> None:
        self.constraints = constraints
        self.calls = Calls()
        self.has_objective = True
        self.sizes: list[int] | None = None  # of the constraints, once evaluated
        self.before: Callable[[], None] | None = None  # called before every evaluation
        # Decided once: isinstance with a protocol costs as much as a small matrix product.
        self.f = None if isinstance(f, Objective) else f
        self.f_by_hand = f if isinstance(f, Objective) else None
        self.blocks: list[tuple[Function | None, Constraint | None]] = [
            (None, c) if isinstance(c, Constraint) else (c, None) for c in constraints.values()
        ]
        self.differentiates = self.f is not None or any(plain for plain, _ in self.blocks)

    def copy(self) -> Oracle:
        """The same functions with their own counters, so that runs in threads do not mix."""
        other = copy(self)
        other.calls = Calls()
        return other

    def without_objective(self) -> Oracle:
        """The constraints alone, with f = 0, and the same counters."""
        other = copy(self)
        other.has_objective = False
        return other

    def at(self, x: Tensor, *, objective: bool = True) -> Point:
        """Evaluate at x; without the objective, f is taken as 0."""
        if self.before is not None:
            self.before()
        return Point(self, x, objective and self.has_objective)

    def check(self, x: Tensor) -> None:
        """Raise if f or a constraint returns a wrong type, shape or value at x."""
        if self.f_by_hand is not None:
            value, grad = self.f_by_hand.value_and_grad(x)
            if isinstance(value, Tensor):
                _check_result("f", value, x, 0)
            _check_gradient("f", grad, x)
            _check_finite("f", torch.as_tensor(value), grad)
        elif self.f is not None:
            f_x, grad = _differentiate("f", self.f, x, 0)
            _check_finite("f", f_x, grad)
        for name, (plain, by_hand) in zip(self.constraints, self.blocks, strict=True):
            if plain is not None:
                r, grad = _differentiate(name, plain, x, 1)
            elif by_hand is not None:
                r = by_hand.values(x)
                _check_result(name, r, x, 1)
                grad = by_hand.vjp(x, torch.ones_like(r))
                _check_gradient(name, grad, x)
            _check_finite(name, r, grad)


class Point:
    """f(x), the constraint vector r(x) and, on request, ∇f(x) + J(x)ᵀw.

    x must not be modified in place while the point is in use.
    """

    x: Tensor
    f: float
    r: Tensor
    sizes: list[int]  # of the blocks of r
    _leaf: Tensor
    _graph: list[Tensor] | None  # results of plain functions, with their autograd graph
    _grad_f: Tensor | None  # from a hand-written f

    def __init__(self, oracle: Oracle, x: Tensor, objective: bool) -> None:
        self.x, self._oracle, self._objective = x, oracle, objective
        self._J: Tensor | None = None
        self._evaluate()

    def gradient(self, w: Tensor) -> Tensor:
        """∇f(x) + J(x)ᵀw; the autograd graph is used once, and a second call evaluates again.

        nan where the functions are not defined at x.
        """
        if self._graph is None:
            self._evaluate()
        if self._graph is None:
            return torch.full_like(self.x, math.nan)
        try:
            return self._backward(w)
        except OUTSIDE_DOMAIN:
            return torch.full_like(self.x, math.nan)

    def pull(self, w: Tensor) -> Tensor:
        """J(x)ᵀw."""
        if self._oracle.differentiates or self._graph is None:
            return self._oracle.at(self.x, objective=False).gradient(w)
        grad_f, self._grad_f = self._grad_f, None
        try:
            return self.gradient(w)
        finally:
            self._grad_f = grad_f

    def jacobian(self) -> Tensor:
        """J(x), one row for every constraint, with x flat; nan where it is not defined."""
        if self._J is None:
            try:
                rows = dense_rows(self.x, self._oracle.blocks, self.sizes, self._oracle.calls)
            except OUTSIDE_DOMAIN:
                rows = []
            missing = self.x.new_full((len(self.r), self.x.numel()), math.nan)
            self._J = torch.cat(rows) if rows else missing
        return self._J

    def _evaluate(self) -> None:
        """Evaluate; nan where the functions raise because x is outside their domain."""
        try:
            self._forward()
        except OUTSIDE_DOMAIN:
            if self._oracle.sizes is None:
                raise  # nothing is known of the constraints yet
            self._graph, self.f, self.sizes = None, math.nan, self._oracle.sizes
            self.r = self.x.new_full((sum(self.sizes),), math.nan)

    def _backward(self, w: Tensor) -> Tensor:
        # Scalar outputs: with grad_outputs torch would import its symbolic shapes, for seconds.
        scalars: list[Tensor] = []
        outputs = iter(self._graph or [])
        grad, blocks = self._grad_f, self._oracle.blocks
        if self._objective and self._oracle.f is not None:
            self._oracle.calls.gradient += 1
            scalars.append(next(outputs))
        parts = (w,) if len(blocks) == 1 else torch.split(w, self.sizes) if blocks else ()
        for (_, by_hand), part in zip(blocks, parts, strict=True):
            if by_hand is None:
                with torch.enable_grad():
                    scalars.append(torch.dot(next(outputs), part))
            else:
                vjp = by_hand.vjp(self.x, part)
                grad = vjp if grad is None else grad + vjp
        if scalars:
            self._graph = None  # before it is used up: Ctrl-C may come at any time
            (vjp,) = torch.autograd.grad(scalars, self._leaf)
            grad = vjp if grad is None else grad + vjp
        return torch.zeros_like(self.x) if grad is None else grad

    def _forward(self) -> None:
        x, oracle = self.x, self._oracle
        leaf = self._leaf = x.detach().requires_grad_() if oracle.differentiates else x
        graph: list[Tensor] = []
        self.f, self._grad_f = 0.0, None
        if self._objective:
            oracle.calls.function += 1
            if oracle.f_by_hand is not None:
                oracle.calls.gradient += 1
                value, self._grad_f = oracle.f_by_hand.value_and_grad(x)
                self.f = float(value)
            elif oracle.f is not None:
                with torch.enable_grad():
                    f_x = oracle.f(leaf)
                self.f = f_x.item()
                graph.append(f_x)
        oracle.calls.constraint += 1
        values = []
        for plain, by_hand in oracle.blocks:
            if by_hand is not None:
                values.append(by_hand.values(x))
            elif plain is not None:
                with torch.enable_grad():
                    r = plain(leaf)
                graph.append(r)
                values.append(r.detach())
        self._graph = graph
        self.sizes = oracle.sizes = [r.shape[0] for r in values]
        if values:
            self.r = values[0] if len(values) == 1 else torch.cat(values)
        else:
            self.r = x.new_zeros(0)  # no constraints


def _differentiate(name: str, function: Function, x: Tensor, ndim: int) -> tuple[Tensor, Tensor]:
    """Return the checked result at x and the gradient of its sum."""
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        result = function(leaf)
    _check_result(name, result, x, ndim)
    rule = f"{name} must be differentiable with respect to x"
    if not result.requires_grad:
        raise ValueError(f"{rule}, got a result without gradient")
    with torch.enable_grad():
        total = result.sum()
    grad = torch.autograd.grad(total, leaf, allow_unused=True)[0]
    if grad is None:
        raise ValueError(f"{rule}, got a result that does not depend on it")
    return result.detach(), grad


def _check_result(name: str, result: object, x: Tensor, ndim: int) -> None:
    kind = "a scalar tensor" if ndim == 0 else "a 1-D tensor"
    if not isinstance(result, Tensor):
        raise TypeError(f"{name} must return {kind}, got {result!r}")
    if result.ndim != ndim or result.numel() == 0:
        raise ValueError(f"{name} must return {kind}, got shape {tuple(result.shape)}")
    _check_kind(f"{name} must return", result, x)


def _check_gradient(name: str, grad: Tensor, x: Tensor) -> None:
    rule = f"{name} must return a gradient of shape {tuple(x.shape)}"
    if grad.shape != x.shape:
        raise ValueError(f"{rule}, got {tuple(grad.shape)}")
    _check_kind(f"{name} must return a gradient in", grad, x)


def _check_kind(rule: str, result: Tensor, x: Tensor) -> None:
    if result.dtype != x.dtype or result.device != x.device:
        kinds = [f"{t.dtype} on {t.device}" for t in (x, result)]
        raise ValueError(f"{rule} {kinds[0]} as x_1, got {kinds[1]}")


def _check_finite(name: str, result: Tensor, grad: Tensor) -> None:
    for what, values in (name, result), (f"the gradient of {name}", grad):
        if not values.isfinite().all():
            wrong = values[~values.isfinite()].reshape(-1)[0].item()
            raise ValueError(f"{what} must be finite at x_1, got {wrong!r}")
