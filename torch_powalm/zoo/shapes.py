"""Shapes of a function: monotone, convex, bounded, symmetric.

With `points`, the shape holds at these points, each with its own multiplier. Without, call the
entry with points of your choice at every step: the batch, or random points of a box.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_powalm.training.registry import ConstraintRegistry
from torch_powalm.zoo.points import Model, derivatives, register_at_points
from torch_powalm.zoo.zoo_entry import Entry

Transform = Callable[[Tensor], Tensor]


def monotone(
    constraints: ConstraintRegistry,
    name: str,
    model: Model,
    *,
    increasing: Sequence[int] = (),
    decreasing: Sequence[int] = (),
    points: Tensor | None = None,
) -> Entry:
    """Make the output rise with some features and fall with others.

        ∂f/∂x_j ≥ 0 for j in increasing,   ∂f/∂x_j ≤ 0 for j in decreasing

    Args:
        constraints: the registry.
        name: name of the block.
        model: maps points of shape (n, features) to one output each.
        increasing: positions of the features with which the output must not fall.
        decreasing: positions of the features with which it must not rise.
        points: fixed points, or None to call the entry with points.
    """
    columns, signs = [*increasing, *decreasing], [-1.0] * len(increasing) + [1.0] * len(decreasing)
    if not columns or len(set(columns)) < len(columns):
        raise ValueError(
            f"increasing and decreasing of {name!r} must name each feature once, got {columns!r}"
        )

    def wrong_way(model: Model, points: Tensor) -> Tensor:
        _check_features(name, columns, points)
        slope = derivatives(model, points)[1][:, columns]
        return slope * torch.tensor(signs).to(slope)

    return register_at_points(constraints, name, model, wrong_way, points, inequality=True)


def convex(
    constraints: ConstraintRegistry,
    name: str,
    model: Model,
    *,
    features: Sequence[int] | None = None,
    points: Tensor | None = None,
) -> Entry:
    """Make the output convex in some features, for pairs of points that differ only in them.

        f((a + b)/2) ≤ (f(a) + f(b))/2

    The pairs are (point i, point i + 1), in the order given. For a concave function pass a model
    with the opposite sign.

    Args:
        constraints: the registry.
        name: name of the block.
        model: maps points of shape (n, features) to one or several outputs.
        features: positions of the features; None for all.
        points: fixed points, or None to call the entry with points.
    """

    def above_chord(model: Model, points: Tensor) -> Tensor:
        other = points.roll(-1, 0)
        if features is not None:
            _check_features(name, features, points)
            moved = points.clone()
            moved[:, list(features)] = other[:, list(features)]
            other = moved
        middle: Tensor = model((points + other) / 2)
        ends: Tensor = model(torch.cat([points, other]))
        return middle - (ends[: len(points)] + ends[len(points) :]) / 2

    return register_at_points(constraints, name, model, above_chord, points, inequality=True)


def bounded(
    constraints: ConstraintRegistry,
    name: str,
    model: Model,
    *,
    low: float | None = None,
    high: float | None = None,
    points: Tensor | None = None,
) -> Entry:
    """Keep the outputs between two numbers: low ≤ f(x) ≤ high.

    Args:
        constraints: the registry.
        name: name of the block.
        model: maps points to outputs.
        low: smallest output, or None.
        high: largest output, or None.
        points: fixed points, or None to call the entry with points.
    """
    if low is None and high is None:
        raise ValueError(f"low or high of {name!r} must be given, got None for both")
    if low is not None and high is not None and not low <= high:
        raise ValueError(f"low of {name!r} must be at most high, got {low!r} and {high!r}")

    def outside(model: Model, points: Tensor) -> Tensor:
        value = model(points)
        sides = [] if low is None else [low - value]
        return torch.cat(sides if high is None else [*sides, value - high])

    return register_at_points(constraints, name, model, outside, points, inequality=True)


def invariant(
    constraints: ConstraintRegistry,
    name: str,
    model: Model,
    transform: Transform,
    *,
    points: Tensor | None = None,
    bound: float = 0.0,
) -> Entry:
    """Make the outputs the same before and after a transformation: f(Tx) = f(x).

    Args:
        constraints: the registry.
        name: name of the block.
        model: maps points to outputs.
        transform: maps points to points, for example `lambda x: -x`; it must not be random.
        points: fixed points, or None to call the entry with points.
        bound: difference that is allowed, ≥ 0.
    """
    return equivariant(constraints, name, model, transform, lambda y: y, points=points, bound=bound)


def equivariant(
    constraints: ConstraintRegistry,
    name: str,
    model: Model,
    transform: Transform,
    output_transform: Transform,
    *,
    points: Tensor | None = None,
    bound: float = 0.0,
) -> Entry:
    """Make the outputs follow a transformation of the inputs: f(Tx) = S f(x).

    Arguments are those of `invariant`; `output_transform` is S.
    """

    def difference(model: Model, points: Tensor) -> Tensor:
        outputs: Tensor = model(torch.cat([points, transform(points)]))
        before, after = outputs.chunk(2)
        return after - output_transform(before)

    return register_at_points(
        constraints, name, model, difference, points, inequality=False, bound=bound
    )


def _check_features(name: str, features: Sequence[Any], points: Tensor) -> None:
    inputs = points.shape[-1]
    wrong = [j for j in features if not isinstance(j, int) or not 0 <= j < inputs]
    if points.dim() != 2 or wrong:
        got = wrong[0] if wrong else tuple(points.shape)
        raise ValueError(f"features of {name!r} must be columns in [0, {inputs}), got {got!r}")
