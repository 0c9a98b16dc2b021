"""IndexedMultipliers: one multiplier per data point, of which a step touches those of its batch.

The block is a vector B of n values, but a batch has b of them. Three vectors of n are kept: the
multipliers y, the value of each entry when it was last in a batch (nan before), and which entries
have been in a batch since the last update. The block has a norm of its own, and its Lagrangian

    ⟨y, B⟩ + βφ(s B),     φ(r) = ‖r‖^(ν+1) / (ν+1)

is estimated from the batch: (n/b) Σ w_i B_i has the expected gradient of all n entries, with w of
the whole block. For ν < 1, w depends on the norm of the block. It is kept up to date by the change
of the entries in the batch, with the slacks of all others as the last update left them, and summed
anew at every update. An update moves the multipliers of entries that have been in a batch.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torch_powalm import functional
from torch_powalm.functional import violation
from torch_powalm.result import Violation
from torch_powalm.training.indexed.entries import Entries, agreeing, masked
from torch_powalm.training.indexed.indexed_state import SUMS, VECTORS, checked_indexed
from torch_powalm.training.indexed.indexed_summary import described, summary
from torch_powalm.training.on_device.tensor_formulas import (
    norm,
    scaled_add,
    slack_stiffness,
    stiffness,
    wide,
)
from torch_powalm.training.on_device.transfer import to_host

_TINY = 1e-30  # smallest scale


class IndexedMultipliers:
    """Multipliers and latest values of one block, in the user's units.

    Args:
        name: name of the block.
        size: number n of entries.
        inequality: whether B ≤ 0.
    """

    def __init__(self, name: str, size: int, inequality: bool) -> None:
        self.name, self.size, self.inequality = name, size, inequality
        self.y = self.value = torch.empty(0)
        self.fresh = torch.empty(0, dtype=torch.bool)
        # Tensors if numbers stay on the device:
        self.squares: Any = 0.0  # ‖(A, u)‖²
        self.excess: Any = 0.0  # ‖(A, max(B, 0))‖²
        self.slack: Any = 0.0  # t of the last update: u = max(B, −t y)
        self.scale: Any = 1.0
        self.beta: Any = 1.0
        self.one: Any = 1.0
        self._changes: tuple[Entries, Any, Any] | None = None  # of both sums by the last batch
        self.nu, self.far, self.deferred = 1.0, math.inf, False

    def place(self, device: torch.device, dtype: torch.dtype, deferred: bool) -> None:
        """Make the vectors on a device, once; decide whether numbers stay there, too."""
        self.deferred = deferred
        if deferred:
            self.one = torch.ones((), dtype=dtype, device=device)
            self.scale, self.beta = self.one.clone(), torch.ones((), dtype=wide(device)).to(device)
        if len(self.y) != self.size:
            self.y = torch.zeros(self.size, device=device, dtype=dtype)
            self.value = torch.full_like(self.y, math.nan)
            self.fresh = torch.zeros(self.size, dtype=torch.bool, device=device)
        self._take_sums(self.squares, self.excess, self.slack)

    def _take_sums(self, *sums: Any) -> None:
        """Set the sums of squares and the slack, on the device or as numbers."""
        if self.deferred:
            kind = wide(device := self.y.device)
            sums = tuple(torch.as_tensor(x, dtype=kind, device=device).clone() for x in sums)
        else:
            sums = tuple(map(float, sums))
        (self.squares, self.excess, self.slack), self._changes = sums, None

    def set_units(self, scale: float, beta: float, nu: float, far: float) -> None:
        """Set the units of the penalty; `far` is the norm beyond which it grows linearly."""
        self._changes = None
        self.nu, self.far = nu, far
        if self.deferred:
            self.scale.fill_(max(scale, _TINY))
            self.beta.fill_(beta)
        else:
            self.scale, self.beta = max(scale, _TINY), beta

    @torch.no_grad()
    def weight(self, entries: Entries) -> Tensor:
        """Return w of the entries of a batch, times n/b."""
        value, index, first = entries.value.detach().to(self.y), entries.indices, entries.first
        y, before, q, rest = self.y[index], self.value[index], self.one, self.one
        squares, excess = self._sums(before, value, y, first)
        if self.far < math.inf:
            q = self._shortening(_positive(self.excess - excess[0]) + excess[1])
        if self.nu < 1:
            rest = _positive(self.squares - squares[0]) * q * q
        self._changes = entries, squares[1] - squares[0], excess[1] - excess[0]
        r = value * (self.scale * q)
        w = self._plus(y, r, self._stiffness(masked(r, first, 0.0), y, rest))
        return (w.clamp_(min=0) if self.inequality else w).mul_(self.size / len(index))

    @torch.no_grad()
    def follow(self, entries: Entries, ok: Tensor | None) -> None:
        """Take the values of a batch after its step, unless `ok` is false on the device."""
        index = entries.indices
        before, value = self.value[index], agreeing(entries).to(self.y)
        value = value if ok is None else torch.where(ok, value, before)
        self._add(entries, before, value, ok)
        self.value[index] = value
        self.fresh[index] = True if ok is None else ok | self.fresh[index]

    def _add(self, entries: Entries, before: Tensor, value: Tensor, ok: Tensor | None) -> None:
        """Change the sums of squares by the entries of a batch."""
        if self._changes is not None and self._changes[0] is entries:  # known from the weight
            _, squares, excess = self._changes
            if ok is not None:
                squares, excess = (torch.where(ok, x, 0.0) for x in (squares, excess))
        else:
            both = self._sums(before, value, self.y[entries.indices], entries.first)
            (s, s_new), (e, e_new) = both
            squares, excess = s_new - s, e_new - e
        self._changes = None
        self.squares, self.excess = self.squares + squares, self.excess + excess

    def _sums(
        self, before: Tensor, value: Tensor, y: Tensor, first: Tensor | None
    ) -> tuple[Any, Any]:
        """Return `_squares` and `_excess` of some entries, each before and with new values."""
        if self.nu == 1 and self.far == math.inf:
            return (0.0, 0.0), (0.0, 0.0)
        both = torch.stack([masked(before, first), masked(value, first)])
        return self._squares(both, y), self._excess(both)

    @torch.no_grad()
    def update(self, sigma: float, integral: bool, y_max: float) -> None:
        """Move the multipliers of the entries that were in a batch since the last update.

        Args:
            sigma: dual step.
            integral: whether it multiplies (A, B) instead of (A, u).
            y_max: largest absolute multiplier.
        """
        q, _, r = self._residual()
        if integral:
            r = self.value.nan_to_num() * (self.scale * q)
        length = norm(r)
        step = sigma * stiffness(length, torch.ones_like(length), self.nu)
        y = scaled_add(self.y, r, step * self.scale)
        y = (y.clamp(min=0) if self.inequality else y).clamp(-y_max, y_max)
        self.y.copy_(torch.where(self.fresh, y, self.y))
        self.fresh.zero_()

    @torch.no_grad()
    def sum_anew(self) -> None:
        """Sum the norm over all entries, in the units now in force."""
        q, c, _ = self._residual()
        slack = torch.where(c > 0, 1 / (c * q), 0.0)
        self._take_sums(self.squares, self._excess(self.value), slack)
        self.squares = self._squares(self.value, self.y)

    def _residual(self) -> tuple[Any, Tensor, Tensor]:
        """Return q, the stiffness c and (A, u) of the whole block, scaled."""
        q = self._shortening(self._excess(self.value))
        r = self.value.nan_to_num() * (self.scale * q)
        lower = self._lower(self.y)
        beta = torch.as_tensor(self.beta, dtype=wide(r.device))
        c = slack_stiffness(r, lower, beta.to(r.device), self.nu)
        if lower is not None:
            t = torch.where(c > 0, 1 / c, 1.0).clamp(max=0.1 * torch.finfo(r.dtype).max)
            r = torch.maximum(r, lower * t.to(r.dtype))
        return q, c, r

    def _shortening(self, excess: Any) -> Any:
        """Return q = min(1, far / ‖(A, max(B, 0))‖)."""
        if self.far == math.inf:
            return self.one
        if self.deferred:
            return (self.far / excess.sqrt()).clamp(max=1.0)
        return self.far / max(self.far, math.sqrt(excess))

    def _stiffness(self, r: Tensor, y: Tensor, rest: Any) -> Any:
        """Return the stiffness of the block, from some entries and the squares of the others."""
        if self.nu == 1:
            return self.beta
        if self.deferred:
            return slack_stiffness(r, self._lower(y), self.beta, self.nu, rest)
        r_norm = math.hypot(functional.norm(r), math.sqrt(rest))
        return functional.slack_stiffness(r, r_norm, self._lower(y), self.beta, self.nu, rest)

    def _plus(self, y: Tensor, r: Tensor, c: Any) -> Tensor:
        """Return y + s c r."""
        if self.deferred:
            return scaled_add(y, r, c * self.scale)
        return functional.scaled_add(y, r, c * self.scale)

    def _lower(self, y: Tensor) -> Tensor | None:
        """Return −y in scaled units; None for equalities."""
        return y * (-1 / self.scale) if self.inequality else None

    def _excess(self, value: Tensor) -> Any:
        """Return the sum of squares of the scaled violations, by row; unseen entries are nan."""
        return self._sum(violation(value, self.inequality) * self.scale)

    def _squares(self, value: Tensor, y: Tensor) -> Any:
        """Return the sum of squares of the scaled (A, u) with the slacks of the last update."""
        r = value * self.scale
        if self.inequality:
            r = torch.maximum(r, y * (self.slack * (-1 / self.scale)))
        return self._sum(r)

    def _sum(self, r: Tensor) -> Any:
        """Return the sum of squares by row, on the device or as numbers."""
        found = r.nan_to_num().square().sum(-1, dtype=wide(r.device))
        return found if self.deferred else found.tolist()

    def summary(self) -> list[Tensor]:
        """Return what a report says about the block, still on the device."""
        return summary(self.value, self.y, self.inequality)

    def violation(self) -> Violation:
        """Return the violation at the latest values, with quantiles and the worst entries."""
        return described(to_host(self.summary()), self.size)

    def state_dict(self) -> dict[str, Any]:
        """Return what the next steps depend on."""
        kind = wide(self.y.device)
        sums = {n: torch.as_tensor(getattr(self, n), dtype=kind).clone() for n in SUMS}
        return {**{name: getattr(self, name).clone() for name in VECTORS}, **sums}

    def checked(self, state: Any, where: str) -> dict[str, Tensor]:
        """Return a saved state; raise if an entry is not what this block has."""
        return checked_indexed(state, where, self.size, self.inequality)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; the vectors have been made."""
        for name in VECTORS:
            setattr(self, name, state[name].detach().clone().to(getattr(self, name)))
        self._take_sums(*(state[name].detach() for name in SUMS))


def _positive(x: Any) -> Any:
    """Return max(x, 0)."""
    return x.clamp(min=0) if isinstance(x, Tensor) else max(x, 0.0)
