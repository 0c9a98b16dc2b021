"""Workarounds for Lightning: its two import names, and a hook that it does not have.

`lightning` and `pytorch_lightning` are two names with two sets of classes; a callback that works
with both derives from both. Without this, a trainer of the other name rejects it or fails later.

No hook runs before a checkpoint is read, so `guard_loading` replaces the strategy's
`load_checkpoint`. Without this, a damaged file is loaded silently when the damage is in a tensor.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any


def _installed_callbacks() -> list[Any]:
    """Return the callback modules of the installed packages, at least one."""
    found = []
    for name in ("lightning.pytorch.callbacks", "pytorch_lightning.callbacks"):
        try:
            found.append(importlib.import_module(name))
        except ModuleNotFoundError:
            continue
    if not found:
        raise ImportError(
            "torch_powalm.lightning needs Lightning; install it with "
            "pip install 'torch-powalm[lightning]'"
        )
    return found


CALLBACKS = _installed_callbacks()


def guard_loading(strategy: Any, check: Callable[[Any], None]) -> None:
    """Make the strategy call `check(path)` before it reads a checkpoint; patch it only once."""
    if isinstance(strategy.load_checkpoint, functools.partial):
        return
    strategy.load_checkpoint = functools.partial(_load_checked, strategy.load_checkpoint, check)


def _load_checked(
    load: Callable[..., Any], check: Callable[[Any], None], path: Any, *args: Any, **kwargs: Any
) -> Any:
    check(path)
    return load(path, *args, **kwargs)
