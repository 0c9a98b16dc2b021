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
from torch_powalm.checks.state_checks import check_keys, check_tensor
from torch_powalm.functional import violation
from torch_powalm.result import Violation
from torch_powalm.training.indexed.entries import Entries, agreeing, masked
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
_SAVED = ("y", "value", "fresh", "squares", "excess", "slack")


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
        self.squares = self.excess = self.slack = torch.zeros(())
        self.scale: Any = 1.0  # tensors if numbers stay on the device
        self.beta: Any = 1.0
        self.one: Any = 1.0
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
            self.squares = torch.zeros((), dtype=wide(device), device=device)  # ‖(A, u)‖²
            self.excess = torch.zeros_like(self.squares)  # ‖(A, max(B, 0))‖²
            self.slack = torch.zeros_like(self.squares)  # t of the last update: u = max(B, −t y)

    def set_units(self, scale: float, beta: float, nu: float, far: float) -> None:
        """Set the units of the penalty; `far` is the norm beyond which it grows linearly."""
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
        if self.far < math.inf:
            excess = self.excess - self._excess(masked(before, first))
            q = self._shortening(excess.clamp(min=0) + self._excess(masked(value, first)))
        if self.nu < 1:
            rest = (self.squares - self._squares(masked(before, first), y)).clamp(min=0)
            rest = rest * q * q
        r = value * (self.scale * q)
        w = self._plus(y, r, self._stiffness(masked(r, first, 0.0), y, rest))
        return (w.clamp_(min=0) if self.inequality else w).mul_(self.size / len(index))

    @torch.no_grad()
    def follow(self, entries: Entries, ok: Tensor | None) -> None:
        """Take the values of a batch after its step, unless `ok` is false on the device."""
        index, first = entries.indices, entries.first
        before, value = self.value[index], agreeing(entries).to(self.y)
        value = value if ok is None else torch.where(ok, value, before)
        if self.nu < 1 or self.far < math.inf:
            y = self.y[index]
            old, new = masked(before, first), masked(value, first)
            self.squares = self.squares + self._squares(new, y) - self._squares(old, y)
            self.excess = self.excess + self._excess(new) - self._excess(old)
        self.value[index] = value
        self.fresh[index] = True if ok is None else ok | self.fresh[index]

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
        one = torch.ones_like(self.squares)
        step = sigma * stiffness(norm(r), one, self.nu)
        y = scaled_add(self.y, r, step * self.scale)
        y = (y.clamp(min=0) if self.inequality else y).clamp(-y_max, y_max)
        self.y.copy_(torch.where(self.fresh, y, self.y))
        self.fresh.zero_()

    @torch.no_grad()
    def sum_anew(self) -> None:
        """Sum the norm over all entries, in the units now in force."""
        self.excess = self._excess(self.value)
        q, c, _ = self._residual()
        self.slack = torch.where(c > 0, 1 / (c * q), 0.0)
        self.squares = self._squares(self.value, self.y)

    def _residual(self) -> tuple[Any, Tensor, Tensor]:
        """Return q, the stiffness c and (A, u) of the whole block, scaled."""
        q = self._shortening(self._excess(self.value))
        r = self.value.nan_to_num() * (self.scale * q)
        lower = self._lower(self.y)
        beta = torch.as_tensor(self.beta, dtype=self.squares.dtype)
        c = slack_stiffness(r, lower, beta.to(r.device), self.nu)
        if lower is not None:
            t = torch.where(c > 0, 1 / c, 1.0).clamp(max=0.1 * torch.finfo(r.dtype).max)
            r = torch.maximum(r, lower * t.to(r.dtype))
        return q, c, r

    def _shortening(self, excess: Tensor) -> Any:
        """Return q = min(1, far / ‖(A, max(B, 0))‖)."""
        if self.far == math.inf:
            return self.one
        if self.deferred:
            return (self.far / excess.sqrt()).clamp(max=1.0)
        return self.far / max(self.far, math.sqrt(excess.item()))

    def _stiffness(self, r: Tensor, y: Tensor, rest: Any) -> Any:
        """Return the stiffness of the block, from some entries and the squares of the others."""
        if self.nu == 1:
            return self.beta
        if self.deferred:
            return slack_stiffness(r, self._lower(y), self.beta, self.nu, rest)
        squares = rest.item()
        r_norm = math.hypot(functional.norm(r), math.sqrt(squares))
        return functional.slack_stiffness(r, r_norm, self._lower(y), self.beta, self.nu, squares)

    def _plus(self, y: Tensor, r: Tensor, c: Any) -> Tensor:
        """Return y + s c r."""
        if self.deferred:
            return scaled_add(y, r, c * self.scale)
        return functional.scaled_add(y, r, c * self.scale)

    def _lower(self, y: Tensor) -> Tensor | None:
        """Return −y in scaled units; None for equalities."""
        return y * (-1 / self.scale) if self.inequality else None

    def _excess(self, value: Tensor) -> Tensor:
        """Return the sum of squares of the scaled violations; unseen entries are nan."""
        excess = violation(value, self.inequality).nan_to_num() * self.scale
        return torch.dot(excess, excess).to(self.squares.dtype)

    def _squares(self, value: Tensor, y: Tensor) -> Tensor:
        """Return the sum of squares of the scaled (A, u) with the slacks of the last update."""
        r = value * self.scale
        if self.inequality:
            r = torch.maximum(r, y * (self.slack * (-1 / self.scale)).to(y.dtype))
        r = r.nan_to_num()
        return torch.dot(r, r).to(self.squares.dtype)

    def summary(self) -> list[Tensor]:
        """Return what a report says about the block, still on the device."""
        return summary(self.value, self.y, self.inequality)

    def violation(self) -> Violation:
        """Return the violation at the latest values, with quantiles and the worst entries."""
        return described(to_host(self.summary()), self.size)

    def state_dict(self) -> dict[str, Any]:
        """Return what the next steps depend on."""
        return {name: getattr(self, name).clone() for name in _SAVED}

    def checked(self, state: Any, where: str) -> dict[str, Tensor]:
        """Return a saved state; raise if an entry is not what this block has."""
        state = check_keys(state, where, _SAVED)
        found: dict[str, Tensor] = {}
        for name in _SAVED:
            place, vector = f"{where}[{name!r}]", name in ("y", "value", "fresh")
            value = state[name]
            if name == "value" and isinstance(value, Tensor):  # nan was never seen
                check_tensor(value.nan_to_num(), place, shapes=[(self.size,)])
                found[name] = value
                continue
            low = 0.0 if name == "y" and self.inequality else -math.inf
            shape = (self.size,) if vector else ()
            found[name] = check_tensor(value, place, shapes=[shape], low=low, mask=name == "fresh")
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; the vectors have been made."""
        for name in _SAVED:
            setattr(self, name, state[name].detach().clone().to(getattr(self, name)))
