"""Limited-memory BFGS in coefficient space."""

from __future__ import annotations

import math
from array import array
from operator import mul

import torch
from torch import Tensor

from torch_powalm.solvers.prox_gradient import dot

_LONG = 4096  # entries of x from which on the pairs do not stay in the cache


class LBFGS:
    """Inverse Jacobian H of a map r(x) from the last m pairs s = Δx, y = Δr (Nocedal 1980).

    The two-loop recursion runs on coefficients in the basis of the stored pairs: a direction is
    one product with the stacked pairs, which gives all inner products with r, scalar recursions
    and one transposed product, in place of 4 m operations on vectors (Chen, Wang, Zhou 2014).
    The inner products of a new y with the older pairs are differences of those with r.

    Long pairs are kept in float32: H is a guess, and reading them is what a direction costs.

    Args:
        like: a tensor with the size, dtype and device of x.
        memory: number of pairs m, at least 1.
    """

    def __init__(self, like: Tensor, memory: int) -> None:
        self.memory = memory
        long = like.dtype == torch.float64 and like.numel() >= _LONG
        self.dtype = torch.float32 if long else like.dtype
        # Pair i is rows 2i (s) and 2i + 1 (y). There is room for 2m + 1 pairs, so that the last m
        # are consecutive rows and are moved only once in m + 1 updates.
        self.rows = like.new_empty(4 * memory + 2, like.numel(), dtype=self.dtype)
        self.row = self.rows.unbind()  # views: to index a tensor costs as much as a short product
        self.views: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self.coefficients = array("d", [0.0]) * (2 * memory)
        self.weights = torch.frombuffer(self.coefficients, dtype=torch.float64)  # its memory
        self.converts = self.dtype != torch.float64 or like.device.type != "cpu"
        self.reset()

    def reset(self) -> None:
        """Forget all pairs."""
        self.size = 0
        self.end = 0  # the pairs end before row 2 · end
        # Of pair i, oldest first: ⟨s_i, y_i⟩, ⟨s_i, y_j⟩ of the younger j from the youngest on,
        # ⟨s_j, y_i⟩ of the older j from the oldest on, and ⟨y_i, y_j⟩ of all j.
        self.s_y: list[float] = []
        self.younger: list[list[float]] = []
        self.older: list[list[float]] = []
        self.y_y: list[list[float]] = []
        self.r: Tensor | None = None  # where `products` was computed
        self.products: list[float] = []  # ⟨s_i, r⟩ and ⟨y_i, r⟩ alternating

    def update(self, s: Tensor, r: Tensor, r_next: Tensor) -> None:
        """Store s and y = r_next − r, unless ⟨s, y⟩ is not positive."""
        y = r_next - r
        s_y, y_sq = dot(s, y), dot(y, y)
        if not 1e-12 * y_sq < s_y < math.inf:
            return
        self.row[2 * self.end].copy_(s if s.ndim == 1 else s.reshape(-1))
        self.row[2 * self.end + 1].copy_(y if y.ndim == 1 else y.reshape(-1))
        if self.size == self.memory:
            self._drop_oldest()
        self.end += 1
        self.size += 1
        if r is self.r:
            before = self.products
            self._multiply(r_next)
            with_y = [after - b for after, b in zip(self.products, before, strict=False)]
        else:
            self._multiply(y)
            with_y, self.r = self.products[:-2], None
        older, y_y = with_y[::2], [*with_y[1::2], y_sq]
        for younger, s_j in zip(self.younger, older, strict=True):
            younger.insert(0, s_j)
        for row, y_j in zip(self.y_y, y_y, strict=False):
            row.append(y_j)
        self.s_y.append(s_y)
        self.younger.append([])
        self.older.append(older)
        self.y_y.append(y_y)
        if self.end == 2 * self.memory + 1:
            self.rows[: 2 * self.size] = self._pairs()[0]
            self.end = self.size

    def direction(self, r: Tensor) -> Tensor:
        """Return d = −H r; at least one pair must be stored."""
        if r is not self.r:
            self._multiply(r)
        scale = self.s_y[-1] / self.y_y[-1][-1]
        a: list[float] = []  # from the youngest pair on
        for i in range(self.size - 1, -1, -1):
            a.append((self.products[2 * i] - sum(map(mul, a, self.younger[i]))) / self.s_y[i])
        a.reverse()
        c: list[float] = []
        for i, (a_i, y_y, older) in enumerate(zip(a, self.y_y, self.older, strict=True)):
            y_q = self.products[2 * i + 1] - sum(map(mul, a, y_y))
            c.append(a_i - (scale * y_q + sum(map(mul, c, older))) / self.s_y[i])
            self.coefficients[2 * i] = c[i]
            self.coefficients[2 * i + 1] = -scale * a_i
        weights = self.weights[: 2 * self.size] if self.size < self.memory else self.weights
        if self.converts:
            weights = weights.to(self.rows)
        d = torch.addmv(self.flat, self._pairs()[1], weights, beta=-scale, alpha=-1)
        return d if r.ndim == 1 and d.dtype == r.dtype else d.to(r.dtype).view(r.shape)

    def _multiply(self, r: Tensor) -> None:
        """Compute the products of all pairs with r."""
        flat = r if r.ndim == 1 else r.reshape(-1)
        self.r, self.flat = r, flat if flat.dtype == self.dtype else flat.to(self.dtype)
        self.products = torch.mv(self._pairs()[0], self.flat).tolist()

    def _pairs(self) -> tuple[Tensor, Tensor]:
        """The rows in use, and their transpose."""
        key = self.size, self.end
        if key not in self.views:
            pairs = self.rows[2 * (self.end - self.size) : 2 * self.end]
            self.views[key] = pairs, pairs.T
        return self.views[key]

    def _drop_oldest(self) -> None:
        self.size -= 1
        del self.s_y[0], self.younger[0], self.older[0], self.y_y[0], self.products[:2]
        for older, y_y in zip(self.older, self.y_y, strict=True):
            del older[0], y_y[0]
