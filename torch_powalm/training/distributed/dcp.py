"""MultiplierState: the multipliers as an entry of a torch.distributed.checkpoint."""

import io
from typing import Any

import torch

from torch_powalm.checks.state_checks import check_keys, refuse
from torch_powalm.training.checkpoint_checks import load_bytes
from torch_powalm.training.optimizer import PowerALMOptimizer


class MultiplierState:
    """Saves and loads the multipliers of a wrapped optimizer when the model is sharded.

    torch's distributed checkpoints drop unknown keys of an optimizer, and load only into existing
    tensors, which a new optimizer does not have. So the multipliers, which are the same on all
    ranks, are stored as bytes that load with weights_only=True.

    Args:
        optimizer: the wrapped optimizer; save its base as a separate entry.

    Example:
        weights, moments = get_state_dict(model, optimizer.base)
        state = {"model": weights, "optimizer": moments, "powalm": MultiplierState(optimizer)}
        torch.distributed.checkpoint.save(state, checkpoint_id=folder)
    """

    def __init__(self, optimizer: PowerALMOptimizer) -> None:
        if not isinstance(optimizer, PowerALMOptimizer):
            got = type(optimizer).__name__
            raise TypeError(f"optimizer must be a PowerALMOptimizer, got {got}")
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return `PowerALMOptimizer.powalm_state_dict()` as bytes."""
        content = io.BytesIO()
        torch.save(self.optimizer.powalm_state_dict(), content)
        return {"powalm": content.getvalue()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check the bytes and load them with `PowerALMOptimizer.load_powalm_state_dict`."""
        content = check_keys(state_dict, "state_dict", ["powalm"])["powalm"]
        if not isinstance(content, bytes):
            refuse("state_dict['powalm']", "be bytes", content)
        state = load_bytes(content, "state_dict['powalm']")
        self.optimizer.load_powalm_state_dict(state)
