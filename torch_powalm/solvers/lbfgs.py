"""Limited-memory BFGS in coefficient space."""

from __future__ import annotations

import math
from operator import mul

import torch
from torch import Tensor


class LBFGS:
    """Inverse Jacobian H of a map r(x) from the last m pairs s = Δx, y = Δr (Nocedal 1980).

    The two-loop recursion runs on coefficients in the basis of the stored pairs: a direction is
    one product with the stacked pairs, which gives all inner products with r, scalar recursions
    and one transposed product, in place of 4 m operations on vectors (Chen, Wang, Zhou 2014).
    The inner products of a new y with the older pairs are differences of those with r.

    Args:
        like: a tensor with the size, dtype and device of x.
        memory: number of pairs m, at least 1.
    """

    def __init__(self, like: Tensor, memory: int) -> None:
        self.memory = memory
        # Pair i is rows 2i (s) and 2i + 1 (y). There is room for 2m + 1 pairs, so that the last m
        # are consecutive rows and are moved only once in m + 1 updates.
        self.rows = like.new_empty(4 * memory + 2, like.numel())
        self.reset()

    def reset(self) -> None:
        """Forget all pairs."""
        self.size = 0
        self.end = 0  # the pairs end before row 2 · end
        self.sy: list[list[float]] = []  # sy[i][j − i] = ⟨s_i, y_j⟩ for j ≥ i, oldest pair first
        self.yy: list[list[float]] = []  # yy[i][j] = ⟨y_i, y_j⟩
        self.r: Tensor | None = None  # last argument of `direction`
        self.products: list[float] = []  # ⟨s_i, r⟩ and ⟨y_i, r⟩ alternating

    def update(self, s: Tensor, r: Tensor, r_next: Tensor) -> None:
        """Store s and y = r_next − r, unless ⟨s, y⟩ is not positive."""
        row, y = self.rows[2 * self.end], self.rows[2 * self.end + 1]
        torch.sub(r_next.reshape(-1), r.reshape(-1), out=y)
        s = s.reshape(-1)
        s_y, y_y = torch.dot(s, y).item(), torch.dot(y, y).item()
        if not 1e-12 * y_y < s_y < math.inf:
            return
        if s.data_ptr() != row.data_ptr():  # the last direction is there already
            row.copy_(s)
        if self.size == self.memory:
            self._drop_oldest()
        self.end += 1
        self.size += 1
        if r is self.r:
            before, self.r = self.products, r_next
            self.products = torch.mv(self._pairs(), r_next.reshape(-1)).tolist()
            with_y = [after - b for after, b in zip(self.products, before, strict=False)]
        else:
            self.r = None
            with_y = torch.mv(self._pairs()[:-2], y).tolist()
        with_y += (s_y, y_y)
        self.sy.append([])
        self.yy.append([])
        for i in range(self.size):
            self.sy[i].append(with_y[2 * i])
            self.yy[i].append(with_y[2 * i + 1])
        self.yy[-1] = with_y[1::2]
        if self.end == 2 * self.memory + 1:
            kept = self._pairs()
            self.rows[: len(kept)] = kept
            self.end = self.size

    def direction(self, r: Tensor) -> Tensor:
        """Return d = −H r; at least one pair must be stored.

        It lies in the row where `update` expects the next s, and is lost at the next call.
        """
        m, pairs = self.size, self._pairs()
        if r is not self.r:
            self.r, self.products = r, torch.mv(pairs, r.reshape(-1)).tolist()
        scale = self.sy[-1][0] / self.yy[-1][-1]
        a = [0.0] * m
        for i in reversed(range(m)):
            s_q = self.products[2 * i] - sum(map(mul, a[i + 1 :], self.sy[i][1:]))
            a[i] = s_q / self.sy[i][0]
        y_s = [0.0] * m  # ⟨y_j, Σ_{i<j} (a_i − b_i) s_i⟩, complete when j is reached
        weights: list[float] = []
        for i in range(m):
            y_q = self.products[2 * i + 1] - sum(map(mul, a, self.yy[i]))
            c = a[i] - (scale * y_q + y_s[i]) / self.sy[i][0]
            for j in range(i + 1, m):
                y_s[j] += c * self.sy[i][j - i]
            weights += (c, -scale * a[i])
        d = self.rows[2 * self.end]
        weight = torch.tensor(weights, dtype=d.dtype, device=d.device)
        torch.addmv(r.reshape(-1), pairs.T, weight, beta=-scale, alpha=-1, out=d)
        return d.view(r.shape)

    def _pairs(self) -> Tensor:
        return self.rows[2 * (self.end - self.size) : 2 * self.end]

    def _drop_oldest(self) -> None:
        self.size -= 1
        del self.sy[0], self.yy[0], self.products[:2]
        for row in self.yy:
            del row[0]
