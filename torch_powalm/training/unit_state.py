"""Checks of the saved measurements of `AutomaticUnits`, entry by entry."""

import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from torch_powalm.checks.state_checks import (
    check_count,
    check_flag,
    check_items,
    check_keys,
    check_list,
    check_number,
    check_tensor,
    refuse,
)

_length = partial(check_number, low=0)
_LENGTHS = ("change", "pulls", "sizes")  # lists of measured lengths by block
_GAIN = ("before", "pace")  # of the integral, one number for each entry
BY_NAME = ("used", "moves", "peaks")  # a length for each block
_KEYS = (*_LENGTHS, *BY_NAME, *_GAIN, "steps", "pull", "at", "rates", "due", "alone")


def checked_units(
    state: Any, where: str, sizes: Mapping[str, int], samples: Sequence[Tensor], started: bool
) -> dict[str, Any]:
    """Return the saved measurements; raise if one is not what was measured.

    Args:
        state: what `AutomaticUnits.state_dict` returned.
        where: its place, for the message.
        sizes: number of entries of every block.
        samples: entries of every parameter, as they are watched for moves.
        started: whether the multipliers have started, so that the units must be known.
    """
    state = check_keys(state, where, (*_KEYS, "reached"))
    names = sizes.keys()
    lengths = partial(check_list, check=_length)
    found: dict[str, Any] = {
        key: check_items(state[key], f"{where}[{key!r}]", names, lengths) for key in _LENGTHS
    }
    found["steps"] = check_count(state["steps"], f"{where}['steps']")
    for key in ("pull", "rates"):
        found[key] = check_list(state[key], f"{where}[{key!r}]", _length)
    for key in BY_NAME:
        found[key] = check_items(state[key], f"{where}[{key!r}]", names, _length)
    found["at"] = _checked_samples(state["at"], f"{where}['at']", samples)
    found["due"] = check_list(state["due"], f"{where}['due']", check_flag, 2)
    shape = (sum(sizes.values()),)
    for key, low in zip(_GAIN, (-math.inf, 1.0), strict=True):
        value, place = state[key], f"{where}[{key!r}]"
        found[key] = None if value is None else check_tensor(value, place, shapes=[shape], low=low)
    if (found["before"] is None) != (found["pace"] is None):
        raise ValueError(f"{where} must have 'before' and 'pace' or neither, got one of them")
    found["alone"] = check_list(state["alone"], f"{where}['alone']", partial(_name, names=names))
    index = partial(_index, count=len(samples))
    found["reached"] = check_items(
        state["reached"], f"{where}['reached']", names, partial(check_list, check=index)
    )
    _check_together(found, where, names, started)
    return found


def _check_together(
    found: Mapping[str, Any], where: str, names: Collection[str], started: bool
) -> None:
    """Raise if entries contradict each other."""
    steps, pull, rates = found["steps"], found["pull"], found["rates"]
    if len(rates) < 2 or rates[0] > rates[1]:
        refuse(f"{where}['rates']", "begin with the learning rate and the largest so far", rates)
    if len(rates) - 2 != len(pull):
        raise ValueError(
            f"{where} must have one 'pull' and one of 'rates' for each measuring step, "
            f"got {len(pull)} and {len(rates) - 2}"
        )
    for name in names:
        sizes, pulls = found["sizes"].get(name), found["pulls"].get(name)
        if bool(sizes) != bool(pulls) or sizes == [] or pulls == []:
            got = f"{len(sizes or [])} and {len(pulls or [])}"
            raise ValueError(f"{where} must have 'sizes' and 'pulls' of {name!r}, got {got}")
    for key in ("moves", "pulls", "sizes"):
        for name in found[key]:
            if name not in found["reached"]:
                raise ValueError(f"{where}['reached'] must have {name!r} as {key!r} does, got none")
    if not (started and steps):
        return
    if len(pull) < steps:
        raise ValueError(
            f"{where}['pull'] must have {steps} items once multipliers have started, "
            f"got {len(pull)}"
        )
    for key in ("used", "peaks"):
        for name in names:
            if name not in found[key]:
                raise ValueError(f"{where}[{key!r}] must have {name!r}, got none")


def _checked_samples(value: Any, where: str, samples: Sequence[Tensor]) -> list[Tensor]:
    if isinstance(value, list) and not value:
        return []
    items = check_list(value, where, lambda item, place: (item, place), len(samples))
    found = []
    for (item, place), sample in zip(items, samples, strict=True):
        if not isinstance(item, Tensor) or item.dtype != sample.dtype:
            refuse(place, f"be a tensor of {sample.dtype}", item)
        full = item.float() if item.element_size() < 4 else item
        checked = check_tensor(full, place, shapes=[tuple(sample.shape)])
        found.append(checked.to(sample))
    return found


def _name(value: Any, where: str, names: Collection[str]) -> str:
    if not isinstance(value, str) or value not in names:
        refuse(where, "be the name of a constraint", value)
    return value


def _index(value: Any, where: str, count: int) -> int:
    if check_count(value, where) >= count:
        refuse(where, f"be the index of one of {count} parameters", value)
    return int(value)
