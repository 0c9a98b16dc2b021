"""The constraints' part of a checkpoint: multipliers by block name, and the epoch's sums so far."""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_powalm.blocks import Tally
from torch_powalm.constraints import ConstraintRegistry
from torch_powalm.dual import DualState
from torch_powalm.vector import BlockVector

_KEYS = {"y", "beta", "k", "start_norm", "last_norm", "epoch", "latest"}
_KEYS |= {"steps", "skipped", "gradient_norm"}  # the counters of the optimizer


class Loaded(NamedTuple):
    """A checkpoint that has been found to fit."""

    dual: DualState
    epoch: dict[str, Tally]
    latest: dict[str, Tensor]


def save(vector: BlockVector, dual: DualState, registry: ConstraintRegistry) -> dict[str, Any]:
    """Tensors, numbers and names only, so that it loads with weights_only=True."""
    state = dual.state_dict()
    state["y"] = vector.split(dual.y) if dual.started else None
    names = {block.name for block in vector.batch}
    state["epoch"] = {name: tuple(t) for name, t in registry.epoch.items() if name in names}
    state["latest"] = {name: value for name, value in registry.latest.items() if name in names}
    return state


def load(
    vector: BlockVector, dual: DualState, groups: list[slice] | None, state: Mapping[str, Any]
) -> Loaded:
    """Check a saved state against the blocks; a missing, unknown or resized one raises."""
    missing = _KEYS - state.keys() if isinstance(state, dict) else _KEYS
    if missing:
        raise ValueError(f"state_dict['powalm'] must have {min(missing)!r}, got {state!r}")
    vector.check_names([*state["epoch"], *state["latest"]])
    fresh = copy.copy(dual)
    fresh.y, fresh.beta, fresh.k = torch.empty(0), fresh.beta_1, 1
    if state["y"] is not None:
        y = vector.pack(state["y"])
        fresh.start(y, vector.inequality, groups)
        fresh.load_state_dict({**state, "y": y})
    epoch = {name: Tally(*sums) for name, sums in state["epoch"].items()}
    return Loaded(fresh, epoch, dict(state["latest"]))
