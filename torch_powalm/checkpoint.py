"""The part "powalm" of a state dict: multipliers by name, counters, and the epoch's sums so far."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torch_powalm.blocks import Tally
from torch_powalm.epoch import Epoch
from torch_powalm.gradient import AugmentedGradient
from torch_powalm.lagrangian import Lagrangian

_COUNTERS = ("steps", "skipped", "gradient_norm")  # of the epoch
_KEYS = {"y", "beta", "k", "start_norm", "last_norm", "epoch", "latest", *_COUNTERS}


def save(lagrangian: Lagrangian, epoch: Epoch) -> dict[str, Any]:
    """Tensors, numbers and names only, so that it loads with weights_only=True."""
    vector, dual, registry = lagrangian.ready(), lagrangian.dual, lagrangian.constraints
    state = dual.state_dict()
    state["y"] = vector.split(dual.y) if dual.started else None
    names = {block.name for block in vector.batch}
    state["epoch"] = {name: tuple(t) for name, t in registry.epoch.items() if name in names}
    state["latest"] = {name: value for name, value in registry.latest.items() if name in names}
    return {**state, **{name: getattr(epoch, name) for name in _COUNTERS}}


def prepare_load(gradient: AugmentedGradient, state: Mapping[str, Any]) -> Callable[[], None]:
    """Check a saved state against the blocks; the returned function takes it over.

    A missing, unknown or resized block raises.
    """
    lagrangian = gradient.lagrangian
    vector, registry = lagrangian.ready(), lagrangian.constraints
    missing = _KEYS - state.keys() if isinstance(state, dict) else _KEYS
    if missing:
        raise ValueError(f"state_dict['powalm'] must have {min(missing)!r}, got {state!r}")
    vector.check_names([*state["epoch"], *state["latest"]])
    dual = copy.copy(lagrangian.dual)
    dual.y, dual.beta, dual.k = torch.empty(0), dual.beta_1, 1
    if state["y"] is not None:
        y = vector.pack(state["y"])
        dual.start(y, vector.inequality, lagrangian.groups())
        dual.load_state_dict({**state, "y": y})
    sums = {name: Tally(*pair) for name, pair in state["epoch"].items()}
    latest = dict(state["latest"])
    counters = {name: state[name] for name in _COUNTERS}

    def commit() -> None:
        lagrangian.dual.__dict__.update(dual.__dict__)
        for block in vector.batch:
            registry.epoch.pop(block.name, None)
        registry.epoch.update(sums)
        registry.latest.update(latest)
        gradient.epoch.__dict__.update(counters)
        gradient.window.clear()

    return commit
