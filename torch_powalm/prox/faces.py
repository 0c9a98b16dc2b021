"""What sets share: their value, and shortest vectors of a normal cone."""

import math
from typing import Any

import torch
from torch import Tensor


def indicator(inside: object) -> float:
    """0 inside, inf outside."""
    return 0.0 if inside else math.inf


def like(value: float | Tensor, x: Tensor) -> Any:
    """The value in dtype and device of x; a tensor of a shape that does not fit x raises."""
    return value.to(x).expand_as(x) if isinstance(value, Tensor) else value


def shorten_by_orthant(v: Tensor, x: Tensor) -> Tensor:
    """The shortest v + s with s_i ≤ 0 where x_i = 0, s_i = 0 elsewhere."""
    return torch.where(x > 0, v, v.clamp(max=0.0))


def shorten_by_ray(v: Tensor, direction: Tensor, norm: float) -> Tensor:
    """The shortest v + t · direction with t ≥ 0; norm is that of the direction."""
    t = max(0.0, -float((v * direction).sum().item()) / norm / norm)
    return torch.add(v, direction, alpha=t)
