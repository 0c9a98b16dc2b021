"""The callbacks of `lightning` and of `pytorch_lightning`: two names, two sets of classes."""

import importlib
from typing import Any


def _flavours() -> list[Any]:
    """What is installed of the two; at least one."""
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


CALLBACKS = _flavours()
