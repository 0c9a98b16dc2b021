"""Checks of what a base keeps for each parameter: step counts, moments, directions of a search."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from torch_powalm.checks.state_checks import (
    check_count,
    check_entries,
    check_keys,
    check_list,
    check_number,
    check_storage,
    refuse,
)
from torch_powalm.training.kept_values import (
    check_plain,
    check_real,
    check_scalar,
    check_shape,
    local,
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
_DEEPEST = 50  # levels of nested lists and mappings
_SEARCH = {"d", "t", "old_dirs", "old_stps", "ro", "H_diag", "prev_flat_grad", "prev_loss"}


def check_kept(base: Optimizer, kept: Any, p: Tensor, group: Mapping[str, Any], where: str) -> None:
    """Raise unless the state of one parameter is what the base keeps for it.

    Args:
        base: the optimizer.
        kept: the saved state of the parameter.
        p: the parameter.
        group: the saved hyperparameters of its group.
        where: the place of the state, for the message.
    """
    if not isinstance(kept, Mapping):
        refuse(where, "be a mapping", kept)
    name = type(base).__name__ if is_from_torch(base) else ""
    if name == "LBFGS":
        _check_search(base, kept, p, group, where)
    elif name == "Adafactor":
        if kept:
            _check_factors(kept, p, where)
    elif name in _KEPT:
        if kept or name == "Adagrad":  # whose load fails with an empty one
            _check_moments(name, kept, p, group, where)
    else:
        _check_unknown(base.state.get(p) or {}, kept, p, where)


def is_from_torch(base: Optimizer) -> bool:
    """Whether the base is one of torch's own optimizers."""
    return type(base).__module__.startswith("torch.optim")


def _check_moments(
    name: str, kept: Mapping[str, Any], p: Tensor, group: Mapping[str, Any], where: str
) -> None:
    """Raise unless each entry is a number, or a tensor of the shape of the parameter."""
    more = {key for (owner, option), key in _BY_SETTING.items() if owner == name}
    needed = {k for (n, option), k in _BY_SETTING.items() if n == name and group.get(option)}
    check_keys(kept, where, sorted(_KEPT[name] | needed), more)
    for key, value in kept.items():
        place = f"{where}[{key!r}]"
        if key in _SCALARS:
            check_scalar(value, place)
        elif not (value is None and name == "SGD"):  # no momentum
            check_shape(value, place, tuple(p.shape))
            low = 0.0 if key in _NONNEGATIVE and not p.is_complex() else -math.inf
            check_real(value, place, low, also_complex=p.is_complex())
    if group.get("centered"):
        square, mean = local(kept["square_avg"]), local(kept["grad_avg"])
        # A mean of squares below the square of the mean would have the root nan.
        if bool((mean.square() > 1.001 * square + 1e-12).any()):
            refuse(f"{where}['grad_avg']", "have squares of at most 'square_avg'", kept["grad_avg"])


def _check_factors(kept: Mapping[str, Any], p: Tensor, where: str) -> None:
    """Raise unless the state is one of Adafactor: a matrix has means of its rows and columns."""
    shape = tuple(p.shape)
    rows, columns = (*shape[:-1], 1), (*shape[:-2], 1, *shape[-1:])
    wanted = {"row_var": rows, "col_var": columns} if p.dim() > 1 else {"variance": shape}
    check_keys(kept, where, ["step", *wanted])
    check_scalar(kept["step"], f"{where}['step']")
    for key, found in wanted.items():
        check_shape(kept[key], f"{where}[{key!r}]", found)
        check_real(kept[key], f"{where}[{key!r}]", 0.0)


def _check_search(
    base: Optimizer, kept: Mapping[str, Any], p: Tensor, group: Mapping[str, Any], where: str
) -> None:
    """Raise unless the state is one of LBFGS: counters, and directions once it has moved."""
    if p is not base.param_groups[0]["params"][0] and kept:
        refuse(where, "be empty: LBFGS keeps its state with the first parameter", kept)
    if not kept:
        return
    moved = _SEARCH if kept.get("n_iter") else ()
    check_keys(kept, where, ["func_evals", "n_iter", *sorted(moved)], ["al"])
    for key in ("func_evals", "n_iter"):
        check_count(kept[key], f"{where}[{key!r}]")
    if not moved:
        return
    total = sum(q.numel() for g in base.param_groups for q in g["params"])
    for key in ("d", "prev_flat_grad"):
        _check_vector(kept[key], f"{where}[{key!r}]", total)
    for key in ("t", "H_diag", "prev_loss"):
        check_plain(kept[key], f"{where}[{key!r}]", low=0.0 if key == "H_diag" else -math.inf)
    pairs = len(check_list(kept["old_dirs"], f"{where}['old_dirs']", lambda item, _: item))
    if pairs > group["history_size"]:
        refuse(f"{where}['old_dirs']", f"have at most {group['history_size']} items", pairs)
    for key in ("old_dirs", "old_stps"):
        check_list(kept[key], f"{where}[{key!r}]", lambda v, at: _check_vector(v, at, total), pairs)
    check_list(kept["ro"], f"{where}['ro']", check_plain, pairs)
    if "al" in kept:
        check_list(kept["al"], f"{where}['al']", _check_optional, int(group["history_size"]))
    elif pairs:
        check_keys(kept, where, ["al"], kept)


def _check_vector(value: Any, where: str, total: int) -> None:
    check_shape(value, where, (total,))
    check_real(value, where)


def _check_optional(value: Any, where: str) -> None:
    if value is not None:
        check_plain(value, where)


def _check_unknown(here: Mapping[Any, Any], kept: Mapping[Any, Any], p: Tensor, where: str) -> None:
    """Raise unless the state of another base is like that in use, and its numbers are finite."""
    if here:
        check_keys(kept, where, map(str, here), map(str, kept))
    for key, value in kept.items():
        low, ours = 0.0 if key in _NONNEGATIVE else -math.inf, here.get(key)
        plain = key in _SCALARS or (key in here and not isinstance(ours, Mapping | list | tuple))
        if plain and isinstance(value, Mapping | list | tuple):
            refuse(f"{where}[{key!r}]", "be a number or a tensor", value)
        for item, at in _leaves(value, f"{where}[{key!r}]"):
            if key in _SCALARS and not isinstance(here.get(key), str):
                check_scalar(item, at)
            elif isinstance(item, Tensor):
                check_storage(item, at, sparse=True)
                ours = here.get(key)
                if p.is_floating_point() and (item.is_complex() or _is_other(item, ours)):
                    refuse(at, "be a floating-point tensor", item)
                turned = item.dim() == p.dim() and item.numel() == p.numel()
                wanted = ours if isinstance(ours, Tensor) else p if turned else item
                if wanted.shape != item.shape:
                    refuse(at, f"be a tensor of shape {tuple(wanted.shape)}", item)
                check_entries(local(item), at, low)
            elif isinstance(here.get(key), Tensor):
                refuse(at, f"be a tensor of shape {tuple(here[key].shape)}", item)
            elif isinstance(item, int | float) and not isinstance(item, bool):
                check_number(item, at, low=low, infinite=True)
            elif isinstance(item, complex | bytes) or type(item).__module__ == "numpy":
                refuse(at, "be a number or a tensor", item)


def check_alike(state: Mapping[Any, Mapping[Any, Any]], where: str) -> None:
    """Raise if an entry is a tensor for one parameter, and something else for another."""
    kinds: dict[Any, bool] = {}
    for number, kept in state.items():
        for key, value in kept.items():
            if value is None or key in _SCALARS:
                continue
            found = isinstance(value, Tensor)
            if kinds.setdefault(key, found) != found:
                rule = "be a tensor for all parameters, or for none"
                refuse(f"{where}[{number!r}][{key!r}]", rule, value)


def _is_other(item: Tensor, ours: Any) -> bool:
    """Whether a tensor is of integers, unless the one in use is, too."""
    of_integers = isinstance(ours, Tensor) and not ours.is_floating_point()
    return not item.is_floating_point() and not of_integers


def _leaves(value: Any, where: str, level: int = 0) -> Iterator[tuple[Any, str]]:
    """Yield what is in nested lists and mappings, with its place."""
    if level > _DEEPEST:
        raise ValueError(f"{where[:80]}… must have at most {_DEEPEST} levels, got more")
    if isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _leaves(item, f"{where}[{i}]", level + 1)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{where}[{key!r}]", level + 1)
    else:
        yield value, where
