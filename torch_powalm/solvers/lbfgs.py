"""Limited-memory BFGS with the two-loop recursion in coefficient space."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from functools import reduce
from operator import add, mul

import torch
from torch import Tensor

_LONG = 4096  # number of entries of x above which the pairs do not fit in the cache


class LBFGS:
    """Approximate inverse Jacobian H of a map r(x), from the last m pairs s = Δx, y = Δr.

    The two-loop recursion (Nocedal 1980) runs on coefficients in the basis of the stored pairs and
    r: one product of all of them with the newest y and r, scalar recursions, and one product with
    the transpose, instead of 4 m vector operations (Chen, Wang, Zhou 2014).

    Long pairs are stored in float32: H is only an approximation, and reading the pairs is the main
    cost of a direction.

    Args:
        like: a tensor with the size, dtype and device of x.
        memory: number of pairs m, at least 1.
    """

    def __init__(self, like: Tensor, memory: int) -> None:
        self.memory = memory
        long = like.dtype == torch.float64 and like.numel() >= _LONG
        self.dtype = torch.float32 if long else like.dtype
        # Pair i is rows 2i (s) and 2i + 1 (y); the last row is r. There is room for m + 1 pairs, so
        # that a rejected pair has not overwritten another one.
        last = 2 * (memory + 1)
        self.rows = like.new_zeros(last + 1, like.numel(), dtype=self.dtype)
        self.columns = self.rows.T
        self.row = self.rows.unbind()  # views: indexing a tensor costs as much as a short product
        self.newest = [self.rows[y :: last - y] for y in range(1, last, 2)]  # y of a pair, and r
        self.coefficients = array("d", [0.0]) * (last + 1)
        self.weights = torch.frombuffer(self.coefficients, dtype=torch.float64)  # shares its memory
        self.converts = self.dtype != torch.float64 or like.device.type != "cpu"
        self.flat = like.ndim == 1  # stored: asking a tensor costs as much as a product of lists
        self.fits = self.flat and self.dtype == like.dtype
        # For pair i: ⟨s_i, y_j⟩ for all newer pairs j, and the products of all rows with y_i.
        self.with_s = [[0.0] * (memory + 1) for _ in range(memory + 1)]
        self.with_y = [[0.0] * (last + 1) for _ in range(memory + 1)]
        self.reset()

    @property
    def size(self) -> int:
        """Number of stored pairs."""
        return len(self.order)

    def reset(self) -> None:
        """Drop all pairs."""
        self.order: list[int] = []  # the pairs in use, oldest first
        self.free = 0  # where the next pair goes
        self.r: Tensor | None = None  # the vector in the last row
        self.with_r: list[float] = []  # the products of all rows with it

    def update(self, s: Tensor, r: Tensor, r_next: Tensor) -> None:
        """Store s and y = r_next − r, unless ⟨s, y⟩ is not positive."""
        i = self.free
        self.row[2 * i].copy_(s if self.flat else s.reshape(-1))
        if self.fits:
            torch.sub(r_next, r, out=self.row[2 * i + 1])
        else:
            self.row[2 * i + 1].copy_((r_next - r).reshape(-1))
        self.row[-1].copy_(r_next if self.flat else r_next.reshape(-1))
        with_y, self.with_r = torch.mm(self.newest[i], self.columns).tolist()
        self.r = r_next
        if not 0 < 1e-12 * with_y[2 * i + 1] < with_y[2 * i] < math.inf:
            self.rows[2 * i : 2 * i + 2] = 0.0  # a nan would matter even with weight 0
            return
        if len(self.order) == self.memory:
            del self.order[0]
        self.order.append(i)
        self.free = (i + 1) % (self.memory + 1)
        self.with_y[i] = with_y
        rows = zip(self.with_s, self.with_y, with_y[::2], with_y[1::2], strict=False)
        for of_s, of_y, s_y, y_y in rows:
            of_s[i], of_y[2 * i + 1] = s_y, y_y

    def direction(self, r: Tensor) -> Tensor:
        """Return d = −H r; at least one pair must be stored."""
        if r is not self.r:
            self.row[-1].copy_(r if self.flat else r.reshape(-1))
            self.r, self.with_r = r, torch.mv(self.rows, self.row[-1]).tolist()
        with_r, with_s, with_y = self.with_r, self.with_s, self.with_y
        i = self.order[-1]
        scale = with_y[i][2 * i] / with_y[i][2 * i + 1]
        # Entries that are still 0 skip the older pairs in the first loop, the newer in the second.
        a = [0.0] * (self.memory + 1)
        for i in reversed(self.order):
            a[i] = (with_r[2 * i] - _dot(a, with_s[i])) / with_s[i][i]
        d = [0.0] * len(self.row)
        d[1::2] = [scale * a_i for a_i in a]
        for i in self.order:
            y_q = scale * with_r[2 * i + 1] - _dot(d, with_y[i])
            d[2 * i] = y_q / with_s[i][i] - a[i]
        d[-1] = -scale
        self.coefficients[:] = array("d", d)
        weights = self.weights.to(self.rows) if self.converts else self.weights
        product = torch.mv(self.columns, weights)
        return product if self.fits else product.to(r.dtype).view(r.shape)


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    """Σ a_i b_i, rounded the same on every Python: the built-in sum is compensated from 3.12 on."""
    return reduce(add, map(mul, a, b), 0.0)
