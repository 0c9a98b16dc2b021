"""constrained: the PowerALMOptimizer inside the wrapper of an engine."""

import importlib
from typing import Any

from torch_powalm.training.optimizer import PowerALMOptimizer

_DEPTH = 8  # more wrappers than any engine has


def constrained(optimizer: Any) -> PowerALMOptimizer:
    """Return the PowerALMOptimizer that an engine has wrapped, or the optimizer itself.

    Args:
        optimizer: what `accelerator.prepare`, `fabric.setup`, `self.optimizers()` of a Lightning
            module or `trainer.optimizer` of a Hugging Face Trainer gives, or a PowerALMOptimizer.
    """
    found = optimizer
    for _ in range(_DEPTH):
        if isinstance(found, PowerALMOptimizer):
            return found
        found = getattr(found, "optimizer", None)
    raise TypeError(
        f"optimizer must be a PowerALMOptimizer or wrap one, got {type(optimizer).__name__}"
    )


def import_engine(module: str, extra: str) -> Any:
    """Import an engine, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name != module.split(".")[0]:
            raise
        raise ImportError(
            f"torch_powalm.integrations needs {module.split('.')[0]}; install it with "
            f"pip install 'torch-powalm[{extra}]'"
        ) from missing
