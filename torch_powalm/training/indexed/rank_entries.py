"""Entries of all ranks: what the batches of several processes say about indexed blocks."""

from typing import NamedTuple

from torch import Tensor

from torch_powalm.training.distributed.reductions import Ranks
from torch_powalm.training.indexed.entries import Entries, distinct

Given = dict[str, Entries]


class Seen(NamedTuple):
    """Entries of all ranks by name, without a graph, in the order of the ranks.

    Args:
        entries: the entries by name of the block.
        own: where those of this rank are.
    """

    entries: Given
    own: dict[str, slice]


def of_all_ranks(given: Given, ranks: Ranks, y: Tensor) -> Seen:
    """Return the entries that all ranks have in this call of `augment`.

    Every rank follows all of them, so that multipliers, norms and saved states are the same.

    Args:
        given: the entries of this rank, by name.
        ranks: the processes that train together.
        y: a vector of the type and on the device of the multipliers.
    """
    mine = {name: e._replace(value=e.value.detach()) for name, e in given.items()}
    if ranks.size == 1:
        return Seen(mine, dict.fromkeys(mine, slice(None)))
    tensors = [e.indices.to(y.device) for e in mine.values()]  # the widest type goes first
    tensors += [e.value.to(y) for e in mine.values()]
    found, lengths = ranks.joined(tensors, y.device)
    before = [sum(row[i] for row in lengths[: ranks.rank]) for i in range(len(mine))]
    entries, own = {}, {}
    for i, (name, e) in enumerate(mine.items()):
        index, value = found[i], found[len(mine) + i]
        entries[name] = Entries(value, index, distinct(index))
        own[name] = slice(before[i], before[i] + len(e.indices))
    return Seen(entries, own)
