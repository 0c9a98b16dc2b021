"""Conditions on the solution of a differential equation that a network represents.

With `points`, the condition holds at these points, each with its own multiplier. Without, call the
entry with new points at every step.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from torch_powalm.training.registry import ConstraintRegistry
from torch_powalm.zoo.points import Model, Residual, derivatives, register_at_points
from torch_powalm.zoo.zoo_entry import Entry, check_number

Field = Callable[[Tensor], Tensor] | Tensor | float


def boundary(
    constraints: ConstraintRegistry,
    name: str,
    model: Model,
    value: Field = 0.0,
    *,
    points: Tensor | None = None,
    bound: float = 0.0,
) -> Entry:
    """Prescribe the solution on the boundary: u(x) = value(x).

    Args:
        constraints: the registry.
        name: name of the block.
        model: the solution u.
        value: a function of the points, a tensor with a value for every fixed point, or a number.
        points: fixed points, or None to call the entry with points.
        bound: deviation that is allowed, ≥ 0.
    """
    residual = _difference(name, value, points)
    return register_at_points(
        constraints, name, model, residual, points, inequality=False, bound=bound
    )


def initial(
    constraints: ConstraintRegistry,
    name: str,
    model: Model,
    value: Field = 0.0,
    *,
    points: Tensor | None = None,
    bound: float = 0.0,
) -> Entry:
    """Prescribe the solution at the first time: u(x, 0) = value(x, 0), as `boundary` does."""
    return boundary(constraints, name, model, value, points=points, bound=bound)


def normal_derivative(
    constraints: ConstraintRegistry,
    name: str,
    model: Model,
    normal: Tensor,
    value: Field = 0.0,
    *,
    points: Tensor | None = None,
    bound: float = 0.0,
) -> Entry:
    """Prescribe the derivative along a direction: n · ∇u(x) = value(x) (Neumann; or u_t at t = 0).

    Arguments are those of `boundary`; `normal` has one direction for all points or one for each.
    """
    difference = _difference(name, value, points)

    def slope(model: Model, points: Tensor) -> Tensor:
        along = (derivatives(model, points)[1] * normal.to(points)).sum(1)
        return difference(lambda _: along, points)

    return register_at_points(
        constraints, name, model, slope, points, inequality=False, bound=bound
    )


def conservation(
    constraints: ConstraintRegistry,
    name: str,
    model: Model,
    slices: Tensor,
    *,
    weights: Tensor | None = None,
    total: float | None = None,
    bound: float = 0.0,
) -> Entry:
    """Keep an integral of the solution the same at all times.

        Σ_i w_i u(x_i, t_k) = Σ_i w_i u(x_i, t_0)   for all k,   or = total for all k

    Args:
        constraints: the registry.
        name: name of the block.
        model: the solution u, or a density of it.
        slices: points of shape (times, points, inputs).
        weights: quadrature weights of the points of a slice; None for their mean.
        total: the known value of the integral; None for that of the first slice.
        bound: deviation that is allowed, ≥ 0.
    """
    if not isinstance(slices, Tensor) or slices.dim() != 3:
        got = tuple(slices.shape) if isinstance(slices, Tensor) else type(slices).__name__
        raise ValueError(f"slices of {name!r} must have shape (times, points, inputs), got {got}")
    times, count = slices.shape[:2]
    if total is None and times < 2:
        raise ValueError(f"slices of {name!r} must have at least 2 times, got {times}")
    if weights is not None and tuple(weights.shape) != (count,):
        raise ValueError(f"weights of {name!r} must have {count} entries, got {weights.numel()}")

    def drift(model: Model, points: Tensor) -> Tensor:
        density: Tensor = model(points.flatten(0, 1)).reshape(times, count)
        integral = density.mean(1) if weights is None else density @ weights.to(density)
        return integral[1:] - integral[0] if total is None else integral - total

    return register_at_points(
        constraints, name, model, drift, slices, inequality=False, bound=bound
    )


def pde_residual(
    constraints: ConstraintRegistry,
    name: str,
    model: Model,
    residual: Residual,
    *,
    points: Tensor | None = None,
    bound: float = 0.0,
) -> Entry:
    """Bound the residual of a differential equation: |N[u](x)| ≤ bound.

    Args:
        constraints: the registry.
        name: name of the block.
        model: the solution u.
        residual: function of the model and the points; use `torch.autograd.grad` with
            `create_graph=True` for derivatives.
        points: fixed points, or None to call the entry with points.
        bound: residual that is allowed, ≥ 0.
    """
    check_number(f"bound of {name!r}", bound, 0)
    return register_at_points(
        constraints, name, model, residual, points, inequality=False, bound=bound
    )


def _difference(name: str, value: Field, points: Tensor | None) -> Residual:
    """Return model(points) − value, for the three forms of a value."""
    if isinstance(value, Tensor) and value.numel() > 1:
        if points is None or value.numel() != len(points):
            wanted = "a function or a number without fixed points" if points is None else None
            wanted = wanted or f"one of {len(points)} entries"  # type: ignore[arg-type]
            raise ValueError(f"value of {name!r} must be {wanted}, got {value.numel()} entries")

    def residual(model: Model, points: Tensor) -> Tensor:
        u: Tensor = model(points).reshape(len(points), -1)
        goal = value(points) if callable(value) else torch.as_tensor(value).to(u)
        goal = goal.detach().reshape(-1, 1 if goal.numel() == 1 else goal.numel() // len(points))
        if goal.numel() not in (1, u.numel()):
            raise ValueError(
                f"value of {name!r} must have the shape {tuple(u.shape)} of the solution, "
                f"got {goal.numel()} entries"
            )
        return u - goal

    return residual
