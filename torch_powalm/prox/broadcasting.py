"""Parameters that are floats or tensors."""

from typing import Any

import torch
from torch import Tensor


def as_tensor(value: float | Tensor) -> Tensor:
    """The value as a tensor, in float64 if it is a float."""
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def expand_like(value: float | Tensor, x: Tensor) -> Any:
    """The value in the shape, dtype and device of x; a float is returned unchanged."""
    return value.to(x).expand_as(x) if isinstance(value, Tensor) else value
