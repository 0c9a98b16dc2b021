"""Indicators of sets, and shortest vectors in shifted normal cones."""

import math

import torch
from torch import Tensor


def indicator(inside: object) -> float:
    """0 inside the set, inf outside."""
    return 0.0 if inside else math.inf


def shorten_by_orthant(v: Tensor, x: Tensor) -> Tensor:
    """The shortest v + s with s_i ≤ 0 where x_i = 0 and s_i = 0 elsewhere."""
    return torch.where(x > 0, v, v.clamp(max=0.0))


def shorten_by_ray(v: Tensor, direction: Tensor, direction_norm: float) -> Tensor:
    """The shortest v + t · direction with t ≥ 0."""
    t = max(0.0, -float((v * direction).sum().item()) / direction_norm / direction_norm)
    return torch.add(v, direction, alpha=t)
