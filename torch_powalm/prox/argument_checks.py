"""Checks of the parameters of convex terms."""

import math

from torch import Tensor


def check_positive(name: str, value: float) -> None:
    """Raise unless 0 < value < inf."""
    if not 0.0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value!r}")


def check_finite(name: str, value: Tensor) -> None:
    """Raise unless all entries are finite."""
    if (wrong := ~value.isfinite()).any():
        raise ValueError(f"{name} must be finite, got {first_entry(value, wrong)!r}")


def check_matrix(name: str, value: Tensor) -> None:
    """Raise unless the value has two dimensions."""
    if value.ndim != 2:
        raise ValueError(f"{name} must have 2 dimensions, got shape {tuple(value.shape)}")


def first_entry(value: Tensor, mask: Tensor) -> float:
    """The first entry where the mask is true."""
    return float(value.expand_as(mask)[mask][0].item())
