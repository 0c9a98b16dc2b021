"""A hook in which ranks meet that differ in their calls of `augment`."""

import weakref
from typing import TYPE_CHECKING

from torch import Tensor

from torch_powalm.training.distributed.sharded_tensors import is_sharded

if TYPE_CHECKING:
    from torch_powalm.training.augmented_gradient import AugmentedGradient


def watch_backward(gradient: "AugmentedGradient") -> None:
    """Make backward passes of one parameter of a run of several ranks meet the other ranks.

    DDP waits in the backward pass for all ranks. One that has left out `augment` would wait there
    for ranks that wait for it in `augment`. FSDP2 does not run hooks of its shards in time; there,
    a rank waits in `augment` no longer than the deadline.
    """
    watched = [p for p in gradient.blocks.params if p.requires_grad and p.is_leaf]
    if gradient.ranks.size == 1 or not watched or is_sharded(watched[0]):
        return
    owner = weakref.ref(gradient)

    def meet(p: Tensor) -> None:
        found = owner()
        if found is not None:
            augmented, blocks = found.window.meets_backward(), found.blocks.ready()
            found.meet_ranks()
            if blocks.batch:
                found.ranks.agreement.in_backward(blocks.device, augmented)

    watched[0].register_post_accumulate_grad_hook(meet)  # type: ignore[no-untyped-call]
