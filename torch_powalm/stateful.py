"""MultiplierState: the multipliers as an entry of a torch.distributed.checkpoint."""

import io
from typing import Any

import torch

from torch_powalm.optimizer import PowerALMOptimizer


class MultiplierState:
    """Saves and loads the multipliers of a wrapped optimizer where a model is sharded.

    torch's distributed checkpoints drop what they do not know of an optimizer, and load into
    tensors that are there already, which a fresh optimizer does not have. So the multipliers, which
    all ranks share, are one value of bytes; its content needs no pickle.

    Args:
        optimizer: the wrapped optimizer, whose base is an entry of its own.

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
        """What `PowerALMOptimizer.powalm_state_dict` gives, as bytes."""
        content = io.BytesIO()
        torch.save(self.optimizer.powalm_state_dict(), content)
        return {"powalm": content.getvalue()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Hand it to `PowerALMOptimizer.load_powalm_state_dict`."""
        state = torch.load(io.BytesIO(state_dict["powalm"]), weights_only=True)
        self.optimizer.load_powalm_state_dict(state)
