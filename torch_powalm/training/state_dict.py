"""The "powalm" entry of a state dict: multipliers by name, counters, and sums of the epoch."""

from collections.abc import Callable, Mapping
from typing import Any

from torch_powalm.dual import DualState
from torch_powalm.training.batch_window import BatchWindow
from torch_powalm.training.block import Tally
from torch_powalm.training.block_vector import BlockVector
from torch_powalm.training.epoch_statistics import EpochStatistics
from torch_powalm.training.registry import ConstraintRegistry

_COUNTERS = ("steps", "skipped", "gradient_norm", "total_steps")  # of the epoch
_KEYS = {"y", "beta", "k", "start_norm", "last_norm", "epoch", "latest", *_COUNTERS}


def save(
    constraints: ConstraintRegistry, blocks: BlockVector, dual: DualState, epoch: EpochStatistics
) -> dict[str, Any]:
    """Return only tensors, numbers and names, so that the state loads with weights_only=True."""
    state = dual.state_dict()
    state["y"] = blocks.split(dual.y) if dual.started else None
    names = [block.name for block in blocks.batch]
    state["epoch"] = {name: tuple(t) for name, t in constraints.epoch_sums(names).items()}
    state["latest"] = constraints.latest_values(names)
    return {**state, **{name: getattr(epoch, name) for name in _COUNTERS}}


def prepare_load(
    state: Mapping[str, Any],
    constraints: ConstraintRegistry,
    blocks: BlockVector,
    dual: DualState,
    epoch: EpochStatistics,
    window: BatchWindow,
) -> Callable[[], None]:
    """Check a saved state against the blocks; the returned function loads it.

    A missing, unknown or resized block raises.
    """
    missing = _KEYS - state.keys() if isinstance(state, dict) else _KEYS
    if missing:
        raise ValueError(f"state_dict['powalm'] must have {min(missing)!r}, got {state!r}")
    blocks.check_names([*state["epoch"], *state["latest"]])
    y = None if state["y"] is None else blocks.pack(state["y"])
    restored = dual.restored({**state, "y": y}, blocks.inequality, blocks.groups())
    sums = {name: Tally(*pair) for name, pair in state["epoch"].items()}
    latest = dict(state["latest"])
    counters = {name: state[name] for name in _COUNTERS}

    def load() -> None:
        dual.take_over(restored)
        constraints.restore([block.name for block in blocks.batch], sums, latest)
        epoch.restore(**counters)
        window.clear()

    return load
