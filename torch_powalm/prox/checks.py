"""Checks of arguments."""

import math

import torch
from torch import Tensor


def check_positive(name: str, value: float) -> None:
    """Raise unless 0 < value < inf."""
    if not 0.0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value!r}")


def check_finite(name: str, value: Tensor) -> None:
    """Raise unless all entries are finite."""
    if (wrong := ~value.isfinite()).any():
        raise ValueError(f"{name} must be finite, got {first(value, wrong)!r}")


def check_matrix(name: str, value: Tensor) -> None:
    """Raise unless there are two dimensions."""
    if value.ndim != 2:
        raise ValueError(f"{name} must have 2 dimensions, got shape {tuple(value.shape)}")


def first(value: Tensor, wrong: Tensor) -> float:
    """The first entry that is wrong."""
    return float(value.expand_as(wrong)[wrong][0].item())


def as_tensor(value: float | Tensor) -> Tensor:
    """A float as a tensor."""
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
