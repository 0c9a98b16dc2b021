"""Checks of the arguments with which a constraint is registered."""

import keyword
from typing import Any

from torch_powalm.training.block import Block

_RESERVED = ("samples", "strict", "window")  # keywords of augment()


def check_name(name: object) -> None:
    """Raise unless the name can be a keyword of `augment`."""
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"name must be a Python identifier, got {name!r}")
    if name in _RESERVED:
        raise ValueError(f"name must not be one of {', '.join(_RESERVED)}, got {name!r}")


def check_arguments(block: Block) -> None:
    """Raise unless the arguments fit either a function of the parameters or a batch block."""
    name, fn, size = block.name, block.fn, block.size
    if fn is not None and not callable(fn):
        raise TypeError(f"fn of {name!r} must be callable, got {type(fn).__name__}")
    if fn is not None and size is not None:
        raise ValueError(f"fn and size of {name!r} are mutually exclusive, got both")
    if size is not None and (not isinstance(size, int) or size < 1):
        raise ValueError(f"size of {name!r} must be a positive integer, got {size!r}")
    _check_batch_only("from_statistics", block.from_statistics, block)
    _check_batch_only("latest", block.latest or None, block)
    if block.model is not None and size is not None:
        raise ValueError(f"model and size of {name!r} are mutually exclusive, got both")


def _check_batch_only(argument: str, value: Any, block: Block) -> None:
    if value is not None and block.size is None:
        raise ValueError(f"size of {block.name!r} must be given with {argument}, got None")
