"""The simplex, of all entries or of each row."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torch_powalm.functional import norm
from torch_powalm.prox.argument_checks import check_positive
from torch_powalm.prox.normal_cones import indicator
from torch_powalm.prox.rounding import rounding


@dataclass(frozen=True)
class Simplex:
    """Indicator of {x : x ≥ 0, Σ x = total}.

    Args:
        total: > 0.
        dim: the dimension along which each row is in a simplex; None for all entries in one.
    """

    is_indicator: ClassVar[bool] = True

    total: float = 1.0
    dim: int | None = None

    def __post_init__(self) -> None:
        check_positive("total", self.total)

    def value(self, x: Tensor) -> float:
        """0 if x ≥ 0 and each sum is total, else inf."""
        rows = self._rows(x)
        slack = rounding(x, rows.shape[-1]) * self.total
        summed = ((rows.sum(-1) - self.total).abs() <= slack).all()
        return indicator((summed & (x >= 0).all()).item())

    def prox(self, v: Tensor, step: float) -> Tensor:
        """max(v − τ, 0) with Σ max(v − τ, 0) = total (Held, Wolfe, Crowder 1974).

        For every k, total ≥ Σ (v_i − τ) over the k largest v_i, with equality when these are the
        positive entries. So τ is the largest (Σ_k v_i − total)/k.
        """
        rows = self._rows(v)
        # Entries that stay positive now lie in (−total, 0]: a large common shift costs no digits.
        rows = rows - rows.amax(-1, keepdim=True)
        sums = rows.sort(dim=-1, descending=True).values.cumsum(-1)
        tau = ((sums - self.total) / _count(rows)).amax(-1, keepdim=True)
        x = (rows - tau).clamp_(min=0.0)
        # The rounding error of τ accumulates over the positive entries; a Newton step removes it.
        positive = x > 0
        error = (self.total - x.sum(-1, keepdim=True)) / positive.sum(-1, keepdim=True)
        x.add_(positive * error).clamp_(min=0.0)  # keep entries as small as the error nonnegative
        return x.reshape(v.shape) if self.dim is None else x.movedim(-1, self.dim)

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Normal cone: s_i = μ on the support of a row, s_i ≤ μ off it, any μ.

        With a = −v minus its mean on the support S, the best μ minimizes

            Σ_S (a_i − μ)² + Σ_off max(a_i − μ, 0)²,   so   |S| μ = Σ_off max(a_i − μ, 0).

        As in the projection, μ is the largest of 0 and all Σ_k a_i / (|S| + k), k largest off S.
        """
        if self.value(x) == math.inf:
            return math.inf
        support, a = self._rows(x) > 0, -self._rows(v)
        size = support.sum(-1, keepdim=True)
        a = a - (a * support).sum(-1, keepdim=True) / size
        sums = a.masked_fill(support, -math.inf).sort(dim=-1, descending=True).values.cumsum(-1)
        mu = (sums / (size + _count(a))).amax(-1, keepdim=True).clamp_(min=0.0)
        residual = a - mu
        return norm(torch.where(support, residual, residual.clamp(min=0.0)))

    def _rows(self, x: Tensor) -> Tensor:
        return x.reshape(-1) if self.dim is None else x.movedim(self.dim, -1)


def _count(rows: Tensor) -> Tensor:
    return torch.arange(1, rows.shape[-1] + 1, dtype=rows.dtype, device=rows.device)
