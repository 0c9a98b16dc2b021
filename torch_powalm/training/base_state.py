"""Checks of the saved state of the base: hyperparameters, and what it keeps for each parameter.

torch checks the number of groups and parameters. Anything else that is wrong in a state, such as a
nan learning rate or moments of another shape, it loads, and fails later or trains on it.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_powalm.state_checks import (
    check_entries,
    check_keys,
    check_list,
    check_number,
    refuse,
)

# What torch's optimizers keep for each parameter that has had a gradient.
_KEPT = {
    "Adadelta": {"step", "square_avg", "acc_delta"},
    "Adagrad": {"step", "sum"},
    "Adam": {"step", "exp_avg", "exp_avg_sq"},
    "AdamW": {"step", "exp_avg", "exp_avg_sq"},
    "Adamax": {"step", "exp_avg", "exp_inf"},
    "ASGD": {"step", "eta", "mu", "ax"},
    "Muon": {"momentum_buffer"},
    "NAdam": {"step", "mu_product", "exp_avg", "exp_avg_sq"},
    "RAdam": {"step", "exp_avg", "exp_avg_sq"},
    "RMSprop": {"step", "square_avg"},
    "Rprop": {"step", "prev", "step_size"},
    "SGD": {"momentum_buffer"},
    "SparseAdam": {"step", "exp_avg", "exp_avg_sq"},
}
_BY_SETTING = {  # kept if the hyperparameter is not 0
    ("Adam", "amsgrad"): "max_exp_avg_sq",
    ("AdamW", "amsgrad"): "max_exp_avg_sq",
    ("RMSprop", "momentum"): "momentum_buffer",
    ("RMSprop", "centered"): "grad_avg",
}
_SCALARS = {"step", "eta", "mu", "mu_product"}
_NONNEGATIVE = {"step", "square_avg", "acc_delta", "sum", "exp_avg_sq", "exp_inf", "step_size"}
_NONNEGATIVE |= {"max_exp_avg_sq", "row_var", "col_var", "variance"}
_FIXED = ("maximize", "capturable", "differentiable")  # a change would break or reverse the steps
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
        _check_kept(base, kept, *of_key[key], where)


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
    for name, value in found.items():
        place, here = f"{where}[{name!r}]", group.get(name)
        if name in _FIXED and name in group and value is not here:
            refuse(place, f"be {here!r} as in this run", value)
        if isinstance(here, bool) and not (value is None or isinstance(value, bool)):
            refuse(place, "be True or False", value)
        if name in group and here is None and not (value is None or isinstance(value, bool)):
            refuse(place, "be None, True or False", value)
        if name in ("params", "param_names") or value is None or isinstance(value, bool | str):
            if isinstance(here, int | float | Tensor) and not isinstance(here, bool):
                refuse(place, "be a number", value)
            continue
        _check_hyperparameter(value, here, place, low=0.0 if _from_torch(base) else -math.inf)


def _check_hyperparameter(value: Any, here: Any, where: str, low: float) -> None:
    if isinstance(here, tuple | list):
        items = check_list(value, where, lambda item, place: item, len(here))
        high = 1.0 if where.endswith("['betas']") else math.inf
        for i, item in enumerate(items):
            if item is None and here[i] is None:
                continue
            if check_number(item, f"{where}[{i}]", low=low) >= high:
                refuse(f"{where}[{i}]", "be less than 1", item)
    elif isinstance(value, Tensor):
        if value.numel() != 1:
            refuse(where, "be a number", value)
        check_entries(value.detach(), where, low)
    elif here is None or isinstance(here, int | float | Tensor):
        if isinstance(value, int | float):
            check_number(value, where, low=low)
        elif here is not None:
            refuse(where, "be a number", value)


def _check_kept(
    base: Optimizer, kept: Any, p: Tensor, group: Mapping[str, Any], where: str
) -> None:
    """Raise unless the state of one parameter fits it."""
    if not isinstance(kept, Mapping):
        refuse(where, "be a mapping", kept)
    name = type(base).__name__
    if _from_torch(base) and name in _KEPT:
        more = {key for (owner, option), key in _BY_SETTING.items() if owner == name}
        needed = {k for (n, option), k in _BY_SETTING.items() if n == name and group.get(option)}
        if kept:
            check_keys(kept, where, sorted(_KEPT[name] | needed), more)
    elif base.state.get(p):
        check_keys(kept, where, map(str, base.state[p]), map(str, kept))
    fits = None if not _from_torch(base) or name not in _KEPT else tuple(p.shape)
    total = sum(q.numel() for g in base.param_groups for q in g["params"])
    for key, value in kept.items():
        place = f"{where}[{key!r}]"
        low = 0.0 if key in _NONNEGATIVE else -math.inf
        for item, at in _leaves(value, place):
            if item is None and key == "momentum_buffer" and isinstance(base, torch.optim.SGD):
                continue
            if fits is not None and key not in _SCALARS:
                if not isinstance(item, Tensor) or tuple(item.shape) != fits:
                    refuse(at, f"be a tensor of shape {fits}", item)
            elif fits is not None or key in _SCALARS:
                _check_scalar(item, at)
            elif isinstance(base, torch.optim.LBFGS):
                _check_search(key, item, at, total)
            if isinstance(item, Tensor):
                if not item.is_floating_point() and p.is_floating_point() and key not in _SCALARS:
                    refuse(at, "be a floating-point tensor", item)
                check_entries(_local(item), at, low)
            elif isinstance(item, float):
                check_number(item, at, low=low, infinite=True)
    if fits is not None and group.get("centered"):
        _check_variance(kept["square_avg"], kept["grad_avg"], where)


def _check_variance(square: Tensor, mean: Tensor, where: str) -> None:
    """Raise if the mean of squares is below the square of the mean, or a root would be nan."""
    if bool((_local(mean).square() > 1.001 * _local(square) + 1e-12).any()):
        refuse(f"{where}['grad_avg']", "have squares of at most 'square_avg'", mean)


def _check_scalar(value: Any, where: str) -> None:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain and not (isinstance(value, Tensor) and value.numel() == 1):
        refuse(where, "be a number", value)
    number = float(value)
    if not 0 <= number < math.inf:
        refuse(where, "be nonnegative and finite", number)
    if where.endswith("['step']") and number != int(number):
        refuse(where, "be a whole number", number)


_VECTORS = {"d", "prev_flat_grad", "old_dirs", "old_stps"}


def _check_search(key: Any, value: Any, where: str, total: int) -> None:
    """Raise unless an entry of LBFGS has its type and length."""
    if key in _VECTORS and value is not None:
        if not isinstance(value, Tensor) or tuple(value.shape) != (total,):
            refuse(where, f"be a tensor of shape {(total,)}", value)
    elif key in ("func_evals", "n_iter") and (isinstance(value, bool) or not _is_count(value)):
        refuse(where, "be a nonnegative integer", value)
    elif isinstance(value, str | bytes | Mapping):
        refuse(where, "be a number or a tensor", value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def _leaves(value: Any, where: str) -> Iterable[tuple[Any, str]]:
    if isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _leaves(item, f"{where}[{i}]")
    else:
        yield value, where


def _local(tensor: Any) -> Tensor:
    """Return the entries of a tensor in this process."""
    values: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    values = values.detach()
    return values.coalesce().values() if values.is_sparse else values


def _hashable(value: Any, where: str) -> Any:
    if not isinstance(value, int | str) or isinstance(value, bool):
        refuse(where, "be the number or the name of a parameter", value)
    return value


def _from_torch(base: Optimizer) -> bool:
    return type(base).__module__.startswith("torch.optim")


def load_base(base: Optimizer, state_dict: dict[str, Any]) -> None:
    """Check the state of the base and load it; if that raises, the base stays as it was."""
    check_base_state(base, state_dict)
    before = dict(base.__dict__)
    try:
        base.load_state_dict(state_dict)
    except BaseException:
        base.__dict__.clear()
        base.__dict__.update(before)
        raise
