"""SeenEntries: which entries of the batch blocks have had a value so far."""

from collections.abc import Container, Iterable

import torch
from torch import Tensor

from torch_powalm.training.batch_window import Tallies
from torch_powalm.training.block import Block, Tally


class SeenEntries:
    """Masks of the entries seen, by block; not part of a checkpoint."""

    def __init__(self) -> None:
        self._masks: dict[str, Tensor] = {}

    def note(self, blocks: Iterable[Block], sums: Tallies, exact: Container[str] = ()) -> None:
        """Note the sums of an epoch, and the blocks whose exact values were passed."""
        for block in blocks:
            if block.name in exact:
                self._masks[block.name] = torch.ones(block.size or 0, dtype=torch.bool)
            elif block.name in sums and not self.all_seen(block.name):
                now = _present(block, sums[block.name])
                self._masks[block.name] = now | self._masks.get(block.name, now)

    def all_seen(self, name: str) -> bool:
        """Whether every entry of a block is known to have been seen."""
        return name in self._masks and bool(self._masks[name].all())

    def missing(self, name: str, size: int) -> Tensor:
        """Return the mask of the entries never seen; none if nothing is known, after a resume."""
        mask = self._masks.get(name)
        return torch.zeros(size, dtype=torch.bool) if mask is None else ~mask


def _present(block: Block, tally: Tally) -> Tensor:
    """Return the mask of the entries with a value: a positive count, or finite statistics."""
    if block.from_statistics is not None:
        return tally.value(block).isfinite().cpu()
    if isinstance(tally.weight, float):
        return torch.ones(block.size or 0, dtype=torch.bool)
    return (tally.weight > 0).cpu().expand(block.size or 0)
