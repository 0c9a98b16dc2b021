"""The "powalm" entry of a state dict: multipliers by name, counters, sums, and measured units."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch_powalm.dual import DualState
from torch_powalm.training.automatic_units import AutomaticUnits
from torch_powalm.training.batch_window import BatchWindow
from torch_powalm.training.block import Tally
from torch_powalm.training.block_vector import BlockVector
from torch_powalm.training.epoch_statistics import EpochStatistics
from torch_powalm.training.inspection import Inspection
from torch_powalm.training.registry import ConstraintRegistry
from torch_powalm.training.running_estimate import RunningEstimate, Track

_COUNTERS = ("steps", "skipped", "gradient_norm", "total_steps")  # of the epoch
_KEYS = {"y", "beta", "k", "start_norm", "last_norm", "epoch", "latest", "units", "running", "seen"}
_KEYS |= set(_COUNTERS)


class Parts(NamedTuple):
    """The objects of an optimizer that change during training."""

    constraints: ConstraintRegistry
    blocks: BlockVector
    dual: DualState
    epoch: EpochStatistics
    units: AutomaticUnits
    estimate: RunningEstimate
    window: BatchWindow


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
    state["margin"] = blocks.margin.state_dict()
    return {**state, **{name: getattr(parts.epoch, name) for name in _COUNTERS}}


def prepare_load(state: Mapping[str, Any], parts: Parts) -> Callable[[], None]:
    """Check a saved state against the blocks; the returned function loads it.

    A missing, unknown or resized block raises.
    """
    blocks = parts.blocks
    missing = _KEYS - state.keys() if isinstance(state, dict) else _KEYS
    if missing:
        raise ValueError(f"state_dict['powalm'] must have {min(missing)!r}, got {state!r}")
    blocks.check_names([*state["epoch"], *state["latest"], *state["running"]])
    units = parts.units.restored(state["units"])
    y = None if state["y"] is None else blocks.pack(state["y"])
    restored = units.restored_dual(parts.dual, {**state, "y": y}, blocks)
    sums = {name: Tally(*pair) for name, pair in state["epoch"].items()}
    tracks = {name: Track(Tally(*t[:2]), *t[2:]) for name, t in state["running"].items()}
    latest, seen = dict(state["latest"]), dict(state["seen"])
    counters = {name: state[name] for name in _COUNTERS}

    def load() -> None:
        parts.dual.take_over(restored)
        parts.constraints.restore([block.name for block in blocks.batch], sums, latest, seen)
        parts.epoch.restore(**counters)
        parts.units.take_over(units)
        parts.estimate.restore(tracks)
        blocks.margin.load_state_dict(state.get("margin", {}))
        parts.window.clear()

    return load


class SavedMultipliers(Inspection):
    """The part of PowerALMOptimizer that saves and loads our part of its state."""

    constraints: ConstraintRegistry
    units: AutomaticUnits
    estimate: RunningEstimate

    def powalm_state_dict(self) -> dict[str, Any]:
        """Return the "powalm" entry of `state_dict`: multipliers, counters, sums of the epoch."""
        return save(self._stateful())

    def _prepare_powalm(self, state: Mapping[str, Any]) -> Callable[[], None]:
        return prepare_load(state, self._stateful())

    def _stateful(self) -> Parts:
        parts = self.constraints, self.blocks.ready(), self.dual, self.epoch
        return Parts(*parts, self.units, self.estimate, self.gradient.window)
