"""The second-order cone."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torch_powalm.functional import norm
from torch_powalm.prox.normal_cones import indicator
from torch_powalm.prox.rounding import rounding


@dataclass(frozen=True)
class SecondOrderCone:
    """Indicator of {x : x_0 ≥ ‖(x_1, …, x_n)‖} for each vector along the last dimension of x."""

    is_indicator: ClassVar[bool] = True

    def value(self, x: Tensor) -> float:
        """0 if x_0 ≥ ‖(x_1, …, x_n)‖ for every vector, else inf."""
        head, tail_norm = _split(x)
        return indicator((tail_norm <= head * (1.0 + rounding(x, x.shape[-1]))).all().item())

    def prox(self, v: Tensor, step: float) -> Tensor:
        """For v = (v_0, u): v in the cone, 0 in its polar, else (v_0 + ‖u‖)/2 · (1, u/‖u‖)."""
        head, tail_norm = _split(v)
        # (v_0 + ‖u‖)/2 is at most v_0 in the cone and at most 0 in its polar.
        alpha = torch.maximum(head, ((head + tail_norm) / 2).clamp_(min=0.0))
        scale = torch.where(tail_norm > alpha, alpha / tail_norm, 1.0)
        return torch.cat((alpha, v[..., 1:] * scale), dim=-1)

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Normal cone: 0 inside, t(−1, u/‖u‖) with t ≥ 0 on the boundary, the polar cone at 0.

        The polar of the cone K is −K, so the distance at 0 is ‖v − P_K(v)‖.
        """
        if self.value(x) == math.inf:
            return math.inf
        head, tail_norm = _split(x)
        boundary = tail_norm >= head * (1.0 - rounding(x, x.shape[-1]))
        normal = torch.cat((-torch.ones_like(head), x[..., 1:] / tail_norm), dim=-1)
        t = (-(v * normal).sum(-1, keepdim=True) / 2).clamp(min=0.0)  # ‖normal‖² = 2
        residual = torch.where(boundary, v + t * normal, v)
        return norm(torch.where(head == 0, v - self.prox(v, 1.0), residual))


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    """x_0 and ‖(x_1, …, x_n)‖ of every vector."""
    return x[..., :1], torch.linalg.vector_norm(x[..., 1:], dim=-1, keepdim=True)
