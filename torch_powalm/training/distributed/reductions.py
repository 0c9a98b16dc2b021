"""Ranks: the processes that train one model together, and the sums over them.

DDP or FSDP2 averages gradients over the ranks. A constraint is a function of the whole batch, so
its weight w must come from sums over all ranks; these are detached and small, and need one
all_reduce per call of augment(). A nan on one rank makes the sum nan, so all ranks agree on what is
not finite.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torch_powalm.training.block import Tally
from torch_powalm.training.distributed.agreement import Agreement, all_reduce
from torch_powalm.training.distributed.sharded_tensors import is_sharded

Tallies = Mapping[str, Tally]


class Ranks:
    """The processes that average their gradients; one if torch.distributed is not initialized.

    A deep copy keeps the process group, which belongs to the process; a pickle drops it.

    Args:
        group: a process group that this process is in; None for the default group.
    """

    def __init__(self, group: Any = None) -> None:
        if group is not None and not (dist.is_available() and isinstance(group, dist.ProcessGroup)):
            raise TypeError(
                "process_group must be None or a torch.distributed.ProcessGroup that this process "
                f"is in, got {type(group).__name__}"
            )
        self.group = group
        self.agreement = Agreement(group)

    @property
    def size(self) -> int:
        """Number of ranks."""
        if not dist.is_available() or not dist.is_initialized():
            return 1
        return dist.get_world_size(self.group)

    @property
    def rank(self) -> int:
        """Number of this process among them."""
        return 0 if self.size == 1 else dist.get_rank(self.group)

    def sums(
        self, *parts: Tallies, device: torch.device, agreed: bool = False
    ) -> list[dict[str, Tally]]:
        """Add each of the sums over all ranks, in one all_reduce; the results are detached.

        Args:
            *parts: the sums.
            device: where to add them.
            agreed: check that all ranks add the same things now.
        """
        distinct = {id(part): part for part in parts}
        tallies = [tally for part in distinct.values() for tally in part.values()]
        pieces, group = [piece for tally in tallies for piece in _pieces(tally, device)], self.group
        if agreed:
            header, group = self.agreement.begin_augment(list(distinct.values()), device)
            pieces.insert(0, header)
        buffer = torch.cat(pieces)
        all_reduce(buffer, group)
        summed = iter(torch.split(buffer, [len(piece) for piece in pieces]))
        if agreed:
            self.agreement.check_header(next(summed), 1)
        added = {
            key: {
                name: Tally(next(summed).to(tally.total.dtype), next(summed).to(tally.total.dtype))
                for name, tally in part.items()
            }
            for key, part in distinct.items()
        }
        return [added[id(part)] for part in parts]

    def joined(
        self, tensors: Sequence[Tensor], device: torch.device
    ) -> tuple[list[Tensor], list[list[int]]]:
        """Return vectors of all ranks, joined in the order of the ranks, and their lengths by rank.

        Lengths may differ by rank. They are read, since the other ranks must know what to expect.

        Args:
            tensors: vectors without a graph, on the device, the widest types first.
            device: where they are.
        """
        group, size = self.agreement.begin_indexed(device), self.size
        mine = torch.tensor([len(t) for t in tensors], device=device)
        everyone = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(everyone, mine, group=group)
        lengths = torch.stack(everyone).tolist()
        sizes = [[k * t.element_size() for k, t in zip(r, tensors, strict=True)] for r in lengths]
        packed = torch.cat([t.contiguous().view(torch.uint8) for t in tensors])
        buffers = [packed.new_zeros(max(map(sum, sizes))) for _ in range(size)]
        padded = torch.cat([packed, packed.new_zeros(len(buffers[0]) - len(packed))])
        dist.all_gather(buffers, padded, group=group)
        pieces = [torch.split(b[: sum(s)], s) for b, s in zip(buffers, sizes, strict=True)]
        found = [
            torch.cat([piece[i].view(t.dtype) for piece in pieces]) for i, t in enumerate(tensors)
        ]
        return found, lengths

    def averages(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the mean of each tensor over all ranks; those sharded over ranks as they are."""
        found = []
        for tensor in tensors:
            if not is_sharded(tensor):
                tensor = tensor / self.size
                dist.all_reduce(tensor, group=self.group)
            found.append(tensor)
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> "Ranks":
        return Ranks(self.group)

    def __reduce__(self) -> tuple[type["Ranks"], tuple[()]]:
        return Ranks, ()


def _pieces(tally: Tally, device: torch.device) -> tuple[Tensor, Tensor]:
    total = tally.total.detach().to(device)
    if isinstance(tally.weight, float):
        return total, total.new_full((1,), tally.weight)
    return total, tally.weight.to(device)
