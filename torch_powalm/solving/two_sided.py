"""Two-sided constraints lower ≤ c(x) ≤ upper as inequalities that share one evaluation of c."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_powalm.solving.oracle import Constraint, Function

Triple = tuple[Function | Constraint, float | Tensor, float | Tensor]


def both_sides(two_sided: Triple) -> Function | Constraint:
    """B(x) = (c − upper, lower − c) over the finite bounds, of the same kind as c."""
    if not (isinstance(two_sided, tuple) and len(two_sided) == 3):
        raise TypeError(f"two_sided must be a tuple (c, lower, upper), got {two_sided!r}")
    c, lower, upper = two_sided
    if not (callable(c) or isinstance(c, Constraint)):
        raise TypeError(
            f"two_sided must have a c that is callable or has values and vjp, got {c!r}"
        )
    low, high = (torch.as_tensor(b, dtype=torch.float64).reshape(-1) for b in (lower, upper))
    if not (low < high).all():
        raise ValueError(f"two_sided must have lower < upper, got {lower!r} and {upper!r}")
    if not (low.isfinite().any() or high.isfinite().any()):
        raise ValueError(f"two_sided must have a finite bound, got {lower!r} and {upper!r}")
    if isinstance(c, Constraint):
        return _ByHand(c, low, high)

    def sides(x: Tensor) -> Tensor:
        return _sides(c(x), low, high)

    return sides


class _ByHand:
    def __init__(self, c: Constraint, lower: Tensor, upper: Tensor) -> None:
        self.c, self.lower, self.upper = c, lower, upper
        self.size = max(len(lower), len(upper))

    def values(self, x: Tensor) -> Tensor:
        c_x = self.c.values(x)
        self.size = len(c_x)  # if both bounds are floats, only c knows it
        return _sides(c_x, self.lower, self.upper)

    def vjp(self, x: Tensor, w: Tensor) -> Tensor:
        above, below = (b.expand(self.size).isfinite() for b in (self.upper, self.lower))
        weight = w.new_zeros(self.size)
        weight[above.to(w.device)] = w[: int(above.sum())]
        weight[below.to(w.device)] -= w[int(above.sum()) :]
        return self.c.vjp(x, weight)


def _sides(c_x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    low, high = (b.to(c_x).expand_as(c_x) for b in (lower, upper))
    above, below = high.isfinite(), low.isfinite()
    return torch.cat((c_x[above] - high[above], low[below] - c_x[below]))
