"""Checks of the saved state of the base: hyperparameters, and what it keeps for each parameter.

torch checks the number of groups and parameters. Anything else that is wrong in a state, such as a
nan learning rate or moments of another shape, it loads, and fails later or trains on it.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_powalm.checks.state_checks import (
    check_count,
    check_entries,
    check_list,
    check_number,
    check_storage,
    refuse,
)
from torch_powalm.training.kept_state import check_alike, check_kept, is_from_torch
from torch_powalm.training.kept_values import local

# A change of these would break or reverse the steps, or not be taken over.
_FIXED = ("maximize", "capturable", "differentiable", "line_search_fn", "decoupled_weight_decay")
_SIGNED = ("dampening", "tolerance_grad", "tolerance_change")
_COUNTS = ("history_size", "max_iter", "max_eval", "ns_steps")
_ABOVE_1 = math.nextafter(1.0, 2.0)
_HIGHEST = {("", "betas"): 1.0, ("Adadelta", "rho"): _ABOVE_1, ("RMSprop", "alpha"): _ABOVE_1}
_WHERE = "state_dict['param_groups']"


def check_base_state(base: Optimizer, state_dict: Mapping[str, Any]) -> None:
    """Raise if a saved state of the base has the wrong structure, types, shapes or values."""
    saved, groups = state_dict["param_groups"], base.param_groups
    if not isinstance(saved, list | tuple) or len(saved) != len(groups):
        got = len(saved) if isinstance(saved, list | tuple) else type(saved).__name__
        raise ValueError(f"{_WHERE} must have {len(groups)} parameter groups, got {got}")
    keys: list[Any] = []
    of_key: dict[Any, tuple[Tensor, Mapping[str, Any]]] = {}
    for i, (found, group) in enumerate(zip(saved, groups, strict=True)):
        _check_group(base, found, group, f"{_WHERE}[{i}]")
        keys += found["params"]
        for key, p in zip(found["params"], group["params"], strict=True):
            of_key[key] = p, found
    count = len(keys)
    if len(of_key) != count or (0 in of_key and keys != list(range(count))):
        raise ValueError(f"{_WHERE} must number the {count} parameters from 0 on, got {keys}")
    state = state_dict["state"]
    if not isinstance(state, Mapping):
        refuse("state_dict['state']", "be a mapping", state)
    for key, kept in state.items():
        where = f"state_dict['state'][{key!r}]"
        if key not in of_key:
            raise ValueError(f"{where} must belong to one of {count} parameters, got another key")
        check_kept(base, kept, *of_key[key], where)
    if not is_from_torch(base):
        check_alike(state, "state_dict['state']")


def _check_group(base: Optimizer, found: Any, group: Mapping[str, Any], where: str) -> None:
    """Raise unless saved hyperparameters have the types of the present ones, and are in range."""
    if not isinstance(found, Mapping):
        refuse(where, "be a mapping", found)
    for name in (*base.defaults, "params"):
        if name not in found and name in group:
            raise ValueError(f"{where} must have {name!r}, got {sorted(map(str, found))}")
    params = check_list(found["params"], f"{where}['params']", _hashable)
    if len(params) != len(group["params"]):
        count = len(group["params"])
        rule = "doesn't match the size of the optimizer's group: it must have"
        raise ValueError(f"{where} {rule} {count} parameters, got {len(params)}")
    names, ours = found.get("param_names"), group.get("param_names")
    if names != ours and ours is not None and sorted(map(str, names or ())) == sorted(ours):
        refuse(f"{where}['param_names']", "have the order of this run", names)
    for name, value in found.items():
        if name not in ("params", "param_names"):
            _check_setting(base, name, value, group, f"{where}[{name!r}]")


def _check_setting(
    base: Optimizer, name: str, value: Any, group: Mapping[str, Any], where: str
) -> None:
    """Raise unless a hyperparameter has the type of the present one, and is in range."""
    here, known = group.get(name), name in group
    word = isinstance(here, str) or (here is None and isinstance(value, str))
    if known and word and value is not None:
        if value != here:
            refuse(where, f"be {here!r} as in this run", value)
    elif name in _FIXED and known and value is not here:
        refuse(where, f"be {here!r} as in this run", value)
    elif isinstance(here, tuple | list) and not isinstance(value, tuple | list):
        refuse(where, "be a list", value)
    elif isinstance(here, bool) and not (value is None or isinstance(value, bool)):
        refuse(where, "be True or False", value)
    elif known and here is None and not (value is None or isinstance(value, bool)):
        refuse(where, "be None, True or False", value)
    elif value is None or isinstance(value, bool | str):
        if isinstance(here, int | float | Tensor) and not isinstance(here, bool):
            refuse(where, "be a number", value)
    elif isinstance(here, tuple | list):
        items = check_list(value, where, lambda item, place: item, len(here))
        for i, (item, ours) in enumerate(zip(items, here, strict=True)):
            if item is not None or ours is not None:
                _check_hyperparameter(base, name, item, ours, f"{where}[{i}]")
    elif isinstance(here, int | float | Tensor) or isinstance(value, int | float | Tensor):
        _check_hyperparameter(base, name, value, here, where)


def _check_hyperparameter(base: Optimizer, name: str, value: Any, here: Any, where: str) -> None:
    """Raise unless a number is in range; one that is negative here may be negative."""
    known, high = is_from_torch(base), math.inf
    if known and name in _COUNTS:
        check_count(value, where, low=1)
    if known:
        high = _HIGHEST.get((type(base).__name__, name), _HIGHEST.get(("", name), math.inf))
    negative = isinstance(here, int | float) and here < 0
    low = 0.0 if known and name not in _SIGNED and not negative else -math.inf
    if isinstance(value, Tensor):
        check_storage(value, where)
        taken = isinstance(here, Tensor) or not known or name in ("lr", "betas")
        if not taken or value.numel() != 1 or not value.is_floating_point():
            refuse(where, "be a number", value)
        check_entries(local(value), where, low)
        value = value.item()
    if check_number(value, where, low=low) >= high:
        refuse(where, "be at most 1" if high > 1 else "be less than 1", value)


def _hashable(value: Any, where: str) -> Any:
    if not isinstance(value, int | str) or isinstance(value, bool):
        refuse(where, "be the number or the name of a parameter", value)
    return value


def load_base(base: Optimizer, state_dict: dict[str, Any]) -> None:
    """Check the state of the base and load it; if that raises, the base stays as it was."""
    check_base_state(base, state_dict)
    taken = {_memory(p) for group in base.param_groups for p in group["params"]}
    own = {**state_dict, "state": _own(state_dict["state"], taken)}
    before, groups = dict(base.__dict__), [dict(group) for group in base.param_groups]
    kept = {p: dict(entries) for p, entries in base.state.items()}
    try:
        base.load_state_dict(own)
    except BaseException:
        base.__dict__.clear()
        base.__dict__.update(before)
        for group, entries in zip(base.param_groups, groups, strict=False):
            group.clear()
            group.update(entries)
        base.state.clear()
        base.state.update(kept)
        raise


def _own(value: Any, taken: set[int]) -> Any:
    """Return nested state whose tensors share no memory with each other, nor with parameters.

    A step changes them in place: two that share memory would change each other.
    """
    if isinstance(value, Mapping):
        return {key: _own(entry, taken) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_own(entry, taken) for entry in value)
    if not isinstance(value, Tensor):
        return value
    value, memory = value.detach(), _memory(value)
    spread = any(n > 1 and step == 0 for n, step in zip(value.shape, value.stride(), strict=True))
    if memory and (memory in taken or spread):
        value = value.clone(memory_format=torch.contiguous_format)
    taken.add(memory)
    return value


def _memory(tensor: Tensor) -> int:
    """Return the address of the memory of a tensor; 0 if it has none."""
    values = local(tensor)
    return values.untyped_storage().data_ptr()
