"""Checks, norms and rounding that the terms share."""

import math
from typing import Any

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


def like(value: float | Tensor, x: Tensor) -> Any:
    """The value in dtype and device of x; a tensor of a shape that does not fit x raises."""
    return value.to(x).expand_as(x) if isinstance(value, Tensor) else value


def rounding(x: Tensor, n: int) -> float:
    """Relative error allowed to a norm or sum of n entries in the dtype of x.

    Torch adds up a long norm in order: on the sphere, errors of √n machine epsilons were seen.
    """
    return (64.0 + 4.0 * math.sqrt(n)) * torch.finfo(x.dtype).eps


def length(x: Tensor) -> float:
    """The Euclidean norm of all entries."""
    if x.dtype is torch.float64:  # a third of the time; a shorter dtype would lose its squares
        flat = x.reshape(-1)
        return math.sqrt(torch.dot(flat, flat).item())
    return float(torch.linalg.vector_norm(x).item())


def lengths(x: Tensor, dim: int) -> Tensor:
    """Norms along a dimension, which is kept."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=dim, keepdim=True)
    return norms


def count(rows: Tensor) -> Tensor:
    """1, 2, … along the last dimension of the rows."""
    return torch.arange(1, rows.shape[-1] + 1, dtype=rows.dtype, device=rows.device)


def indicator(inside: object) -> float:
    """0 inside, inf outside."""
    return 0.0 if inside else math.inf


def shrink(v: Tensor, threshold: float) -> Tensor:
    """V less its projection onto |v_i| ≤ threshold."""
    return v - v.clamp(-threshold, threshold)


def shorten_by_orthant(v: Tensor, x: Tensor) -> Tensor:
    """The shortest v + s with s_i ≤ 0 where x_i = 0, s_i = 0 elsewhere."""
    return torch.where(x > 0, v, v.clamp(max=0.0))


def shorten_by_ray(v: Tensor, direction: Tensor, norm: float) -> Tensor:
    """The shortest v + t · direction with t ≥ 0; norm is that of the direction."""
    t = max(0.0, -float((v * direction).sum().item()) / norm / norm)
    return torch.add(v, direction, alpha=t)
