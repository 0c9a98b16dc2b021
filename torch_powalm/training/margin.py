"""Margin: how much stricter than asked for the multipliers see each inequality.

    B(x) + margin ≤ 0,   margin ≥ 0, in the units of B

Margins are given as numbers, or measured on held-out data at multiplier updates.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from torch_powalm.checks.state_checks import check_items, check_keys, check_number, check_tensor
from torch_powalm.functional import violation
from torch_powalm.training.block import Block, Tally, checked_tally
from torch_powalm.training.distributed.reductions import Ranks
from torch_powalm.training.registry import ConstraintRegistry

Margins = str | float | Mapping[str, float]


class MarginSource(Protocol):
    """Held-out data that say which margins are needed (`HeldOut`)."""

    loader: Any

    def margins(
        self,
        constraints: ConstraintRegistry,
        training: Mapping[str, Tensor],
        multipliers: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """Return the margins of inequalities of the batch."""


class Margin:
    """The margins of one optimizer.

    Args:
        margin: a number for all inequalities, numbers by name, or "auto".
        held_out: the data of "auto".
        constraints: the registry, which remembers that these data are used.
    """

    def __init__(
        self, margin: Margins, held_out: MarginSource | None, constraints: ConstraintRegistry
    ) -> None:
        if isinstance(margin, str) and margin != "auto":
            raise ValueError(f"margin must be a number, a mapping or 'auto', got {margin!r}")
        if (margin == "auto") != (held_out is not None):
            got = "no held_out" if held_out is None else f"margin={margin!r}"
            raise ValueError(f"margin='auto' and held_out must be given together, got {got}")
        self.source = held_out
        self._given: dict[str | None, Any] = {}
        if isinstance(margin, Mapping):
            self._given.update(margin)
        elif not isinstance(margin, str):
            self._given[None] = margin
        for name, value in self._given.items():
            what = "margin" if name is None else f"margin of {name!r}"
            if not (hasattr(value, "__float__") and 0 <= value < math.inf):
                raise ValueError(f"{what} must be nonnegative and finite, got {value!r}")
        self.pieces: dict[str, Tensor] = {}  # margins by block; no entry for 0
        self.shifts: dict[str, Tensor] = {}  # what steps add to smooth proxies, in their place
        self.proxies: dict[str, Tally] = {}  # sums of the proxies since the last update
        self.measured_at = -math.inf  # steps done when the held-out data were read last
        if held_out is not None:
            if not hasattr(held_out, "margins"):
                got = type(held_out).__name__
                raise TypeError(f"held_out must be a HeldOut, got {got}")
            constraints.margin_data.append(held_out.loader)

    def start(self, blocks: Iterable[Block], sizes: Mapping[str, int]) -> None:
        """Set the given margins, once the sizes of the blocks are known."""
        known = {block.name: block.inequality for block in blocks}
        for name, value in self._given.items():
            if name is not None and not known.get(name, False):
                raise KeyError(f"margin has no inequality {name!r}")
            names = [n for n, inequality in known.items() if inequality] if name is None else [name]
            given = float(value)
            full = {n: torch.full((sizes[n],), given, dtype=torch.float64) for n in names}
            self.pieces |= full if given > 0 else {}

    def is_due(self, steps_done: int) -> bool:
        """Whether to read the held-out data: not more often than the training reads as much."""
        if self.source is None:
            return False
        batches = len(self.source.loader) if hasattr(self.source.loader, "__len__") else 0
        return steps_done - self.measured_at >= batches

    def follow(self, proxies: Mapping[str, Tally], reported: Mapping[str, Tally]) -> None:
        """Add the smooth proxies of a step, if true values are reported in their place."""
        if self.source is not None and proxies is not reported:
            for name, new in proxies.items():
                past = self.proxies.get(name)
                self.proxies[name] = new.snapshot() if past is None else past.plus(new)

    def restart(self) -> None:
        """Forget the proxies, after an update."""
        self.proxies = {}

    def measure(
        self,
        constraints: ConstraintRegistry,
        values: Mapping[Block, Tensor],
        multipliers: Mapping[str, Tensor],
        ranks: Ranks,
        steps_done: int,
    ) -> None:
        """Measure the margins that these values of the batch blocks need."""
        if self.source is None:
            return
        training = {block.name: value for block, value in values.items()}
        found = self.source.margins(constraints, training, multipliers)
        if ranks.size > 1:  # every rank must see the same numbers
            found = dict(zip(found, ranks.averages(list(found.values())), strict=True))
        self.pieces, self.measured_at, self.shifts = found, steps_done, dict(found)
        for block, value in values.items():
            if block.name in found and block.name in self.proxies:
                proxy = self.proxies[block.name].value(block).to(value)
                self.shifts[block.name] = _without_bias(found[block.name], value, proxy)

    def in_updates(self, r: Tensor, sizes: Mapping[str, int]) -> Tensor:
        """Return r of a multiplier update plus the margins."""
        return r if not self.pieces else r + _joined(self.pieces, r, sizes)

    def in_steps(self, r: Tensor, sizes: Mapping[str, int], sign: int = 1) -> Tensor:
        """Return r of a step plus the margins; minus them with sign −1."""
        shifts = self.shifts or self.pieces
        return r if not shifts else r + sign * _joined(shifts, r, sizes)

    def state_dict(self) -> dict[str, Any]:
        """Return the measured margins; given ones belong to the constructor."""
        if self.source is None:
            return {}
        proxies = {name: tuple(sums) for name, sums in self.proxies.items()}
        measured = {"pieces": dict(self.pieces), "shifts": dict(self.shifts)}
        return {**measured, "proxies": proxies, "measured_at": self.measured_at}

    def settings(self) -> dict[str, Any]:
        """Return the given margins by name, and whether margins are measured."""
        given = {name or "all": float(value) for name, value in self._given.items()}
        return {**given, "auto": self.source is not None}

    def checked_state(
        self, state: Any, where: str, blocks: Iterable[Block], steps_done: int, strict: bool
    ) -> Mapping[str, Any]:
        """Return saved margins; raise if one is not a margin of these batch blocks.

        Those of a run without measured margins are {}, and load only if not `strict`.
        """
        if not strict and (self.source is None or state == {}):
            return {}
        if self.source is None:
            return check_keys(state, where, ())
        state = check_keys(state, where, ("pieces", "shifts", "proxies", "measured_at"))
        batch = {block.name: block for block in blocks}
        found: dict[str, Any] = {}
        for key, low in (("pieces", 0.0), ("shifts", -math.inf), ("proxies", 0.0)):
            entries = check_items(state[key], f"{where}[{key!r}]", batch, lambda entry, _: entry)
            found[key] = {}
            for name, entry in entries.items():
                block, place = batch[name], f"{where}[{key!r}][{name!r}]"
                if key == "proxies":
                    found[key][name] = checked_tally(entry, place, block)
                else:
                    shape = (block.size or 0,)
                    found[key][name] = check_tensor(entry, place, shapes=[shape], low=low)
        last, place = state["measured_at"], f"{where}['measured_at']"
        if not (isinstance(last, float) and last == -math.inf):
            last = check_number(last, place, low=0, high=steps_done)
        return {**found, "measured_at": last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from saved margins, if there are any."""
        if self.source is not None and state:
            self.pieces, self.shifts = dict(state["pieces"]), dict(state["shifts"])
            self.proxies = {name: Tally(*pair) for name, pair in state["proxies"].items()}
            self.measured_at = state["measured_at"]


def _without_bias(margin: Tensor, value: Tensor, proxy: Tensor) -> Tensor:
    """Return what to add to a proxy so that the penalty asks for the margin, and for no more.

    A proxy above the true value makes the penalty push on where the stricter bound is met already.
    So its bias is removed there, and kept where the violation is as large as the margin.
    """
    excess = violation(value + margin, True)
    share = torch.where(excess < margin, 1 - excess / margin.clamp(min=1e-30), 0.0)
    return margin + torch.where(excess > 0, share, 1.0) * (value - proxy)


def _joined(pieces: Mapping[str, Tensor], r: Tensor, sizes: Mapping[str, int]) -> Tensor:
    parts = [pieces[n].to(r) if n in pieces else r.new_zeros(k) for n, k in sizes.items()]
    return torch.cat(parts)
