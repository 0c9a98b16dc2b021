"""Checks of saved state: each function checks one kind of entry, and returns it.

A state dict comes from a file, so any entry may have another type, shape or value than the one that
was saved. The owner of a piece of state describes it with these functions; all of them raise
ValueError with the place of the entry (`where`), the rule, and the value found.
"""

import math
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

_LARGEST_COUNT = 2**53  # beyond it, floats cannot count
_FULL = (torch.float32, torch.float64)


def refuse(where: str, rule: str, value: object) -> NoReturn:
    """Raise with the place of an entry, the rule that it breaks, and its value."""
    got = f"{type(value).__name__} {reprlib.repr(value)}"
    if isinstance(value, Tensor) and value.is_nested:
        got = "a nested tensor"
    elif isinstance(value, Tensor):
        got = f"a tensor of shape {tuple(value.shape)} and {value.dtype}"
    elif value is None or isinstance(value, bool | int | float | str):
        got = reprlib.repr(value)
    raise ValueError(f"{where} must {rule}, got {got}")


def check_number(
    value: Any,
    where: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    positive: bool = False,
    infinite: bool = False,
) -> float:
    """Return a number in [low, high].

    Args:
        value: the entry.
        where: its place, for the message.
        low: lower bound.
        high: upper bound.
        positive: whether it must be greater than 0.
        infinite: whether it may be inf.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(where, "be a number", value)
    if isinstance(value, int) and abs(value) > _LARGEST_COUNT:
        refuse(where, "be a number that a float can hold", value)
    if not (math.isfinite(value) or (infinite and value == math.inf)):
        refuse(where, "be a number or inf" if infinite else "be finite", value)
    if positive and not value > 0:
        refuse(where, "be positive", value)
    if value < low:
        refuse(where, "be nonnegative" if low == 0 else f"be at least {low!r}", value)
    if value > high:
        refuse(where, f"be at most {high!r}", value)
    return float(value)


def check_count(value: Any, where: str, *, low: int = 0) -> int:
    """Return an integer ≥ low."""
    if isinstance(value, bool) or not isinstance(value, int):
        refuse(where, "be an integer", value)
    if value < low:
        refuse(where, "be nonnegative" if low == 0 else f"be at least {low}", value)
    if value > _LARGEST_COUNT:
        refuse(where, "be at most 2**53", value)
    return int(value)


def check_flag(value: Any, where: str) -> bool:
    """Return a bool."""
    if not isinstance(value, bool):
        refuse(where, "be True or False", value)
    return value


def check_tensor(
    value: Any,
    where: str,
    *,
    shapes: Collection[tuple[int, ...]] | None = None,
    low: float = -math.inf,
    mask: bool = False,
) -> Tensor:
    """Return a detached copy of a dense tensor of finite numbers.

    Args:
        value: the entry.
        where: its place, for the message.
        shapes: the shapes it may have; None for any vector that has an entry.
        low: lower bound of its entries.
        mask: whether it must be boolean instead.
    """
    if not isinstance(value, Tensor):
        raise ValueError(f"{where} must be a tensor, got {type(value).__name__}")
    check_storage(value, where)
    shape = tuple(value.shape)
    if shapes is not None and shape not in shapes:
        first = next(iter(shapes))
        if len(first) == 1 and len(shape) == 1:
            raise ValueError(f"{where} must have {first[0]} entries, got {shape[0]}")
        raise ValueError(f"{where} must have shape {first}, got {shape}")
    if shapes is None and (len(shape) != 1 or shape[0] == 0):
        raise ValueError(f"{where} must be a vector with at least one entry, got shape {shape}")
    if mask:
        if value.dtype is not torch.bool:
            raise ValueError(f"{where} must be a boolean tensor, got {value.dtype}")
        return value.detach().clone()
    if value.dtype not in _FULL:
        raise ValueError(f"{where} must be of float32 or float64, got {value.dtype}")
    copy: Tensor = value.detach().clone()
    check_entries(copy, where, low)
    return copy


def check_storage(value: Tensor, where: str, *, sparse: bool = False) -> None:
    """Raise unless a tensor is dense, or sparse where that is allowed, and has data."""
    dense = value.layout is torch.strided or (sparse and value.layout is torch.sparse_coo)
    if value.is_nested or not dense or value.is_quantized or value.device.type == "meta":
        refuse(where, "be a dense tensor with data", value)


def check_entries(value: Tensor, where: str, low: float = -math.inf) -> None:
    """Raise unless all entries of a tensor are finite and ≥ low."""
    if not bool(value.isfinite().all()):
        found = value[~value.isfinite()][0].item()
        raise ValueError(f"{where} must be finite, got {found!r} in it")
    if low > -math.inf and bool((value < low).any()):
        rule = "nonnegative" if low == 0 else f"at least {low!r}"
        raise ValueError(f"{where} must be {rule}, got {value.amin().item()!r} in it")


def check_keys(
    value: Any, where: str, keys: Iterable[str], optional: Iterable[str] = ()
) -> Mapping[str, Any]:
    """Return a mapping that has exactly these keys, and maybe some of the optional ones."""
    wanted, more = dict.fromkeys(keys), set(optional)
    if not isinstance(value, Mapping):
        refuse(where, f"have {min(wanted)!r}" if wanted else "be a mapping", value)
    for key in wanted:
        if key not in value:
            found = sorted(map(repr, value))
            raise ValueError(f"{where} must have {key!r}, got {', '.join(found) or 'no entries'}")
    for key in value:
        if key not in more and key not in wanted:
            raise ValueError(f"{where} must not have unknown entries, got {reprlib.repr(key)}")
    return value


def check_items(
    value: Any, where: str, names: Collection[str], check: Callable[[Any, str], Any]
) -> dict[str, Any]:
    """Return a mapping from some of the names to entries that pass a check."""
    if not isinstance(value, Mapping):
        refuse(where, "be a mapping", value)
    for name in value:
        if name not in names:
            raise ValueError(f"{where} must have registered constraints only, got {name!r}")
    return {name: check(entry, f"{where}[{name!r}]") for name, entry in value.items()}


def check_list(
    value: Any, where: str, check: Callable[[Any, str], Any], length: int | None = None
) -> list[Any]:
    """Return a list of entries that pass a check.

    Args:
        value: the entry.
        where: its place, for the message.
        check: called with every item and its place.
        length: the number of items; None for any.
    """
    if not isinstance(value, list | tuple):
        refuse(where, "be a list", value)
    if length is not None and len(value) != length:
        raise ValueError(f"{where} must have {length} items, got {len(value)}")
    return [check(item, f"{where}[{i}]") for i, item in enumerate(value)]


def check_same(found: Mapping[str, Any], here: Mapping[str, Any], where: str) -> None:
    """Raise if saved settings are not those in use; the message has both values."""
    check_keys(found, where, here)
    for name, value in here.items():
        if isinstance(value, Mapping):
            check_same(found[name], value, f"{where}[{name!r}]")
        elif type(found[name]) is not type(value) or found[name] != value:
            raise ValueError(
                f"{where}[{name!r}] must be {value!r} as in this run, got "
                f"{reprlib.repr(found[name])}; strict=False loads it all the same"
            )
