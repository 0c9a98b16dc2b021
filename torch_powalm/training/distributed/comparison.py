"""Comparison of the ranks: at the first step of a base, at every update, and in check_ranks().

Ranks that began alike may differ later: one loads an older state, takes another base, sets another
learning rate or length, or gives exact values alone. Gradients are averaged all the same, and the
multipliers would be different ones. So every update first compares what it starts from.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch

from torch_powalm.functional import norm

if TYPE_CHECKING:
    from torch_powalm.training.augmented_gradient import AugmentedGradient


@torch.no_grad()
def compare_ranks(gradient: "AugmentedGradient", exact: Collection[str] | None = None) -> None:
    """Raise on all ranks if they are not at the same point of the same training.

    Args:
        gradient: of the optimizer.
        exact: names of the exact values of an update; None if this is not an update.
    """
    blocks, ranks, dual = gradient.blocks.ready(), gradient.ranks, gradient.dual
    if ranks.size == 1:
        return
    gradient.meet_ranks()
    ranks.agreement.begin_comparison(blocks.device, update=exact is not None)
    described = {
        "exact values of update_multipliers()": ", ".join(sorted(exact or ())) or "none",
        "updates": repr(gradient.schedule.updates),
        "total_steps": repr(gradient.schedule.total_steps),
        "steps done": repr(gradient.epoch.total_steps),
        "multiplier updates done": repr(dual.k - 1),
        "base": type(blocks.base).__name__,
    }
    norms = {"the learning rate": float(blocks.rate), "the penalty": float(dual.beta)}
    norms["the vector of multipliers"] = norm(dual.y)
    values = blocks.static_values()
    norms |= {f"constraint {name!r}": norm(value) for name, value in values.items()}
    ranks.agreement.compare(described, norms, blocks.device)
