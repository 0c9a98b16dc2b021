"""Settings that a saved state and all ranks of a run must agree on."""

from collections.abc import Mapping
from importlib import metadata
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_powalm.checks.dual_settings import SIGMAS
from torch_powalm.checks.state_checks import check_count, refuse
from torch_powalm.dual import DualState
from torch_powalm.functional import norm
from torch_powalm.training.automatic_units import AutomaticUnits
from torch_powalm.training.block import Block
from torch_powalm.training.block_vector import BlockVector
from torch_powalm.training.distributed.agreement import Description
from torch_powalm.training.epoch_statistics import EpochStatistics
from torch_powalm.training.update_schedule import UpdateSchedule

_KINDS = tuple(
    f"{kind} of the {of}" for kind in ("equality", "inequality") for of in ("parameters", "batch")
)
_WORDS = {
    "sigma": SIGMAS,
    "coupling": ("all", "block"),
    "blocks": _KINDS,
}  # settings that are words


def settings(dual: DualState, blocks: BlockVector, units: AutomaticUnits) -> dict[str, Any]:
    """Return what gives multipliers their meaning: the rule, and the kinds of the blocks."""
    names = ("nu", "omega", "sigma", "beta_max", "y_max", "sufficient_decrease")
    return {
        **{name: getattr(dual, name) for name in names},
        "beta_1": None if units.steps else dual.beta_1,
        "sigma_1": units.sigma_1,
        "coupling": blocks.coupling,
        "blocks": {block.name: _kind(block) for block in blocks.registered},
        "scales": dict(blocks.given),
        "margin": blocks.margin.settings(),
    }


def _kind(block: Block) -> str:
    return _KINDS[2 * block.inequality + (block.fn is None)]


def encoded(value: Any, name: str = "") -> Any:
    """Return settings with an index for every word, so that states compare as numbers."""
    if isinstance(value, dict):
        return {
            key: encoded(entry, name if name in _WORDS else key) for key, entry in value.items()
        }
    return _WORDS[name].index(value) if name in _WORDS else value


def decoded(value: Any, where: str, name: str = "") -> Any:
    """Return saved settings in words."""
    if isinstance(value, Mapping):
        names = {key: name if name in _WORDS else key for key in value}
        return {key: decoded(value[key], f"{where}[{key!r}]", names[key]) for key in value}
    if name not in _WORDS:
        return value
    if check_count(value, where) >= len(_WORDS[name]):
        refuse(where, f"be less than {len(_WORDS[name])}", value)
    return _WORDS[name][value]


def signature(
    dual: DualState,
    blocks: BlockVector,
    units: AutomaticUnits,
    epoch: EpochStatistics,
    schedule: UpdateSchedule,
    on_nonfinite: str,
) -> Description:
    """Return all that must be the same on every rank, as text by name."""
    found = settings(dual, blocks, units)
    kinds = found.pop("blocks")
    with torch.no_grad():
        static = {name: str(value.dtype) for name, value in blocks.static_values().items()}
    sizes = {name: f"{size} numbers {static.get(name, '')}" for name, size in blocks.sizes.items()}
    sizes |= {part.name: f"{part.size} numbers by index" for part in blocks.indexed}
    described = {
        f"constraint {n!r}": f"{kind}, {sizes.get(n, '').strip()}" for n, kind in kinds.items()
    }
    order = ", ".join(kinds) or "no constraints"
    numbers = sum(p.numel() for p in blocks.params)
    return {
        **described,
        "the order of the constraints": order,
        **{name: repr(value) for name, value in found.items()},
        "warm_up": repr(epoch.warm_up),
        "updates": repr(schedule.updates),
        "total_steps": repr(schedule.total_steps),
        "check_finite": "at_update" if blocks.deferred else "every_step",
        "on_nonfinite": on_nonfinite,
        "steps done": repr(epoch.total_steps),
        "multiplier updates done": repr(dual.k - 1),
        "the norm of the multipliers": f"{norm(dual.y):.6g}",
        "the penalty": f"{dual.beta:.6g}",
        "the trained parameters": f"{len(blocks.params)} tensors of {numbers} numbers",
        "prox": "given" if blocks.optional else "None",
        "base": type(blocks.base).__name__,
        **_hyperparameters(blocks.base),
        "the version of torch": str(torch.__version__),
        "the version of torch-powalm": _version(),
    }


def _hyperparameters(base: Optimizer) -> Description:
    """Return the numbers in the groups of a base, as text by name."""
    found = {}
    for i, group in enumerate(base.param_groups):
        found[f"the number of parameters of group {i}"] = str(len(group["params"]))
        for name, value in group.items():
            value = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
            pair = value if isinstance(value, tuple | list) else [value]
            if name != "params" and all(isinstance(v, int | float) for v in pair):
                found[f"{name} of group {i}"] = repr(value)
    return found


def _version() -> str:
    try:
        return metadata.version("torch-powalm")
    except metadata.PackageNotFoundError:
        return "unknown"
