"""UpdateReading: all that a multiplier update reads from the device."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torch_powalm.training.block_vector import BlockVector

PARAMETERS = 100  # entries of every parameter, about


class UpdateReading(NamedTuple):
    """What an update sees.

    Args:
        r: residual of the epoch.
        seen: which entries of the batch blocks have been in any batch.
        x: some entries of every parameter, on the CPU.
        rate: largest learning rate.
        indexed: summaries of the indexed blocks.
        weight: mean weight of the steps since the last update, if `augment` was called.
    """

    r: Tensor
    seen: Mapping[str, Tensor]
    x: Tensor
    rate: float
    indexed: Sequence[Tensor]
    weight: Tensor | None = None


def read_now(blocks: BlockVector, r: Tensor, indexed: Sequence[Tensor]) -> UpdateReading:
    """Return what an update sees, wherever it is."""
    return UpdateReading(r, blocks.seen(), sample(blocks).to("cpu"), blocks.rate, indexed)


def sample(blocks: BlockVector) -> Tensor:
    """Return some entries of every parameter; none if they are sharded."""
    params = [] if blocks.sharded else blocks.params
    kept = [p.detach().reshape(-1)[:: max(1, p.numel() // PARAMETERS)] for p in params]
    return torch.cat([p.float() for p in kept]) if kept else torch.empty(0, device=blocks.device)
