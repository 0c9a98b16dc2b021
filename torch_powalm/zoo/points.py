"""Constraints that hold at points: at fixed ones, or at points that come with each batch."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from torch_powalm.training.registry import ConstraintRegistry
from torch_powalm.zoo.zoo_entry import Entry, check_number

Model = Callable[[Tensor], Tensor]  # a module, or a function around one
Residual = Callable[[Model, Tensor], Tensor]


def register_at_points(
    constraints: ConstraintRegistry,
    name: str,
    model: Model,
    residual: Residual,
    points: Tensor | None,
    *,
    inequality: bool,
    bound: float = 0.0,
) -> Entry:
    """Register residual(points) = 0, or ≤ 0 if `inequality`, up to a bound.

    At fixed points, every entry of the residual is a constraint of its own, with its own
    multiplier, and a function of the parameters. Without fixed points, the entry is called with
    the points of each batch, and the constraint is one number, the root mean square over all points
    since the last multiplier update, in all processes:

        sqrt(mean of residual², or of max(residual, 0)²) ≤ bound

    Args:
        constraints: the registry.
        name: name of the block.
        model: a module, or a function that calls one; first argument of the residual.
        residual: function of the model and the points.
        points: fixed points, or None.
        inequality: whether the residual must be at most 0, rather than 0.
        bound: size of the residual that is allowed, ≥ 0.
    """
    if not callable(model):
        got = type(model).__name__
        raise TypeError(f"model of {name!r} must be a module or a function, got {got}")
    check_number(f"bound of {name!r}", bound, 0)
    if points is None:
        constraints.inequality(name, size=1, from_statistics=partial(_root_mean, bound=bound))

        def measure(points: Tensor) -> Tensor:
            value = residual(model, _checked(name, points, empty=True)).reshape(-1)
            excess = value.clamp(min=0) if inequality else value
            return torch.stack([excess.square().sum(), value.new_tensor(float(len(value)))])

        return Entry(name, measure)
    fixed = _checked(name, points)

    def values(model: Model) -> Tensor:
        moved = fixed
        if isinstance(model, nn.Module):
            moved = fixed.to(next(model.parameters(), fixed).device)
        value = residual(model, moved).reshape(-1)
        if inequality:
            return value - bound if bound else value
        return value.abs() - bound if bound else value

    register = constraints.inequality if inequality or bound else constraints.equality
    if isinstance(model, nn.Module):
        register(name, values, model=model)
    else:
        register(name, lambda: values(model))
    return Entry(name)


def _checked(name: str, points: object, empty: bool = False) -> Tensor:
    if not isinstance(points, Tensor) or points.dim() < 1 or not (empty or points.numel()):
        got = tuple(points.shape) if isinstance(points, Tensor) else type(points).__name__
        raise ValueError(f"points of {name!r} must be a tensor with one row per point, got {got}")
    return points


def _root_mean(statistics: Tensor, bound: float) -> Tensor:
    mean = statistics[:1] / statistics[1:]
    positive = mean > 0  # the derivative of the root is infinite at 0
    return torch.where(positive, torch.where(positive, mean, 1.0).sqrt(), 0.0 * mean) - bound


def derivatives(model: Model, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs (n,) at points (n, inputs) and their derivatives (n, inputs)."""
    x = points.detach().requires_grad_()
    value = model(x)
    if value.numel() != len(x):
        raise ValueError(
            f"model must have one output per point for a derivative, got {tuple(value.shape)}"
        )
    (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    return value.reshape(-1), slope
