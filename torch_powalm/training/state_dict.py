"""The state dict of an optimizer: that of its base, and ours in the entry "powalm"."""

import copy
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_powalm.checks.dual_settings import checked_multipliers, checked_numbers
from torch_powalm.checks.state_checks import (
    check_items,
    check_keys,
    check_same,
    check_tensor,
    refuse,
)
from torch_powalm.dual import DualState
from torch_powalm.training.automatic_units import AutomaticUnits
from torch_powalm.training.base_state import load_base
from torch_powalm.training.batch_window import BatchWindow
from torch_powalm.training.block import checked_tally
from torch_powalm.training.block_vector import BlockVector
from torch_powalm.training.epoch_statistics import EpochStatistics
from torch_powalm.training.indexed.indexed_blocks import IndexedBlocks
from torch_powalm.training.inspection import Inspection
from torch_powalm.training.registry import ConstraintRegistry
from torch_powalm.training.run_settings import decoded, encoded, settings
from torch_powalm.training.running_estimate import RunningEstimate, checked_track
from torch_powalm.training.unit_measurements import samples
from torch_powalm.training.unit_state import checked_units

_COUNTERS = ("steps", "skipped", "gradient_norm", "total_steps")  # of the epoch
_KEYS = ("y", "beta", "k", "start_norm", "last_norm", "epoch", "latest", "seen", "units", "running")
_WHERE = "state_dict['powalm']"


class Parts(NamedTuple):
    """The objects of an optimizer that change during training."""

    constraints: ConstraintRegistry
    blocks: BlockVector
    dual: DualState
    epoch: EpochStatistics
    units: AutomaticUnits
    estimate: RunningEstimate
    window: BatchWindow
    indexed: IndexedBlocks


def save(parts: Parts) -> dict[str, Any]:
    """Return only tensors, numbers and names, so that the state loads with weights_only=True."""
    constraints, blocks, dual = parts.constraints, parts.blocks, parts.dual
    state = dual.state_dict()
    state["y"] = blocks.split(dual.y) if dual.started else None
    names = [block.name for block in blocks.batch]
    state["epoch"] = {name: tuple(t) for name, t in constraints.epoch_sums(names).items()}
    state["latest"] = constraints.latest_values(names)
    state["seen"] = constraints.seen_entries(names)
    state["units"] = parts.units.state_dict()
    state["running"] = parts.estimate.state_dict()
    if blocks.indexed:
        state["indexed"] = parts.indexed.state_dict()
    state["margin"] = blocks.margin.state_dict()
    state["settings"] = encoded(settings(parts.dual, parts.blocks, parts.units))
    return {**state, **{name: getattr(parts.epoch, name) for name in _COUNTERS}}


def prepare_load(state: Mapping[str, Any], parts: Parts, strict: bool = True) -> Callable[[], None]:
    """Check every entry of a saved state; the returned function loads it, and cannot fail.

    Args:
        state: what `save` returned.
        parts: the objects to load it into.
        strict: raise if the settings of the saved run are not those of this one.
    """
    blocks, units, dual = parts.blocks, parts.units, parts.dual
    added = ("settings", "margin")  # states of earlier versions have none
    indexed = ("indexed",) if blocks.indexed else ()
    needed = (*_KEYS, *_COUNTERS, *indexed, *(added if strict else ()))
    check_keys(state, _WHERE, needed, () if strict else added)
    if strict:
        where = f"{_WHERE}['settings']"
        here = settings(parts.dual, parts.blocks, parts.units)
        check_same(decoded(state["settings"], where), here, where)
    y = None if state["y"] is None else _checked_y(state["y"], parts, strict)
    numbers = checked_numbers(state, _WHERE, dual.beta_max, strict)
    if y is None:
        for name, first in (("k", 1), ("start_norm", 0.0), ("last_norm", math.inf)):
            if numbers[name] != first:
                refuse(f"{_WHERE}[{name!r}]", f"be {first} as long as y is None", numbers[name])
    sizes = blocks.sizes | {part.name: 0 for part in blocks.indexed}
    found = checked_units(
        state["units"], f"{_WHERE}['units']", sizes, samples(blocks.params), y is not None
    )
    load_indexed = parts.indexed.prepare_load(state.get("indexed", {}), f"{_WHERE}['indexed']")
    if (found["steps"] > 0) != (units.steps > 0):
        kinds = "a given beta_1", "measured units"
        ours, theirs = kinds[units.steps > 0], kinds[found["steps"] > 0]
        raise ValueError(f"{_WHERE}['units'] must have {ours} as in this run, got {theirs}")
    counters, sums = parts.epoch.checked_state(state, _WHERE), _checked_sums(state, parts)
    saved, where, done = state.get("margin", {}), f"{_WHERE}['margin']", counters["total_steps"]
    margin = blocks.margin.checked_state(saved, where, blocks.batch, done, strict)
    units = units.restored(found)
    restored = units.restored_dual(dual, {**numbers, "y": y}, blocks)

    def load() -> None:
        parts.dual.take_over(restored)
        names = [block.name for block in blocks.batch]
        parts.constraints.restore(names, sums["epoch"], sums["latest"], sums["seen"])
        parts.epoch.restore(**counters)
        parts.units.take_over(units)
        parts.estimate.restore(sums["running"])
        blocks.margin.load_state_dict(margin)
        load_indexed()
        parts.window.clear()

    return load


def _checked_y(pieces: Any, parts: Parts, strict: bool) -> Tensor:
    """Return the multipliers of all blocks as one vector."""
    blocks, found = parts.blocks, []
    pieces = check_items(pieces, f"{_WHERE}['y']", blocks.sizes, lambda piece, _: piece)
    inequality = blocks.inequality
    kinds = {} if inequality is None else blocks.split(inequality)
    for name, size in blocks.sizes.items():
        if name not in pieces:
            raise ValueError(f"state_dict must have constraint {name!r}, got {list(pieces)}")
        where = f"constraint {name!r} in state_dict"
        args = size, kinds.get(name), parts.dual.y_max, strict
        found.append(checked_multipliers(pieces[name], where, *args).to(blocks.host))
    return torch.cat(found) if found else torch.zeros(0, device=blocks.host)


def _checked_sums(state: Mapping[str, Any], parts: Parts) -> dict[str, dict[str, Any]]:
    """Return the sums, latest values, seen entries and running averages of the batch blocks."""
    device, batch = parts.blocks.device, {block.name: block for block in parts.blocks.batch}
    averaged = {name for name, b in batch.items() if not b.latest} if parts.estimate.on else set()
    wanted = {"epoch": batch, "latest": batch, "seen": batch, "running": averaged}
    found: dict[str, dict[str, Any]] = {}
    for key, names in wanted.items():
        where = f"{_WHERE}[{key!r}]"
        given = check_items(state[key], where, names, lambda entry, _: entry)
        if given or key == "seen":  # else no batch has come yet
            check_keys(given, where, names)
        found[key] = {}
        for name, entry in given.items():
            block, place = batch[name], f"{where}[{name!r}]"
            if key == "epoch":
                found[key][name] = checked_tally(entry, place, block).to(device)
            elif key == "running":
                found[key][name] = checked_track(entry, place, block).to(device)
            else:
                shape = (block.size or 0,)
                entry = check_tensor(entry, place, shapes=[shape], mask=key == "seen")
                found[key][name] = entry.to(device)
    for name in found["running"].keys() & found["epoch"].keys():
        found["running"][name].tally.check_size(found["epoch"][name])
    for name, sums in found["epoch"].items():
        if bool((sums.present(batch[name]) & ~found["seen"][name]).any()):
            where = f"{_WHERE}['seen'][{name!r}]"
            refuse(where, "have the entries of the batches in 'epoch'", state["seen"][name])
    return found


class SavedMultipliers(Inspection):
    """The part of PowerALMOptimizer that saves and loads its state."""

    constraints: ConstraintRegistry
    units: AutomaticUnits
    estimate: RunningEstimate

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the base and ours, and call the hooks registered on this object."""
        for pre_hook in self._optimizer_state_dict_pre_hooks.values():
            pre_hook(self)
        state_dict = {**self.base.state_dict(), "powalm": self.powalm_state_dict()}
        for post_hook in self._optimizer_state_dict_post_hooks.values():
            state_dict = post_hook(self, state_dict) or state_dict
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Load what `state_dict` returned; if a check fails, nothing changes, not even the base.

        `strict` raises if the saved run had other settings, such as another nu.
        """
        state_dict = copy.copy(state_dict)  # hooks may edit it
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = pre_hook(self, state_dict) or state_dict
        if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= state_dict.keys():
            keys = list(state_dict) if isinstance(state_dict, dict) else type(state_dict).__name__
            rule = "state_dict must have the keys 'state' and 'param_groups'"
            raise ValueError(f"{rule}, got {keys!r}")
        load = None
        if "powalm" in state_dict:
            load = self.prepare_powalm(state_dict["powalm"], strict)
        elif not self._managed:
            warnings.warn("state_dict has no multipliers; the current ones are kept", stacklevel=2)
        load_base(self.base, {key: state_dict[key] for key in ("state", "param_groups")})
        if load is not None:
            load()
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)

    def powalm_state_dict(self) -> dict[str, Any]:
        """Return the "powalm" entry of `state_dict`: multipliers, counters, sums of the epoch."""
        parts, device = self._stateful(), self.gradient.device
        if device is not None:
            device.read()
        return save(parts)

    def load_powalm_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Load what `powalm_state_dict` returned, without changing the base."""
        self.prepare_powalm(state_dict, strict)()

    def prepare_powalm(self, state: Mapping[str, Any], strict: bool = True) -> Callable[[], None]:
        """Check our part of a state dict; the returned function loads it, and cannot fail."""
        return prepare_load(state, self._stateful(), strict)

    def _stateful(self) -> Parts:
        parts = self.constraints, self.blocks.ready(), self.dual, self.epoch
        gradient = self.gradient
        return Parts(*parts, self.units, self.estimate, gradient.window, gradient.indexed)
