"""The residual of an epoch: what a multiplier update sees."""

from collections.abc import Mapping

import torch
from torch import Tensor

from torch_powalm.training.block_vector import BlockVector
from torch_powalm.training.registry import ConstraintRegistry


def epoch_residual(
    blocks: BlockVector, constraints: ConstraintRegistry, exact: Mapping[str, Tensor]
) -> Tensor:
    """Return r at the end of an epoch, with exact values or averages for batch blocks."""
    for name in exact:
        if name not in {block.name for block in blocks.batch}:
            raise KeyError(f"update_multipliers has no batch constraint {name!r}")
    sums, values = constraints.epoch_sums(blocks.sizes), []
    for block in blocks.batch:
        if block.name in exact:
            values.append(block.flat(exact[block.name], block.size).detach())
            constraints.mark_seen(block.name, torch.ones_like(values[-1]) > 0)
        elif block.name in sums:
            values.append(sums[block.name].value(block))
        else:
            raise RuntimeError(
                f"update_multipliers has seen no batch of {block.name!r} since the last update"
            )
    batch = torch.cat(values).to(blocks.device) if values else None
    return blocks.join(blocks.evaluate() if blocks.static else None, batch)
