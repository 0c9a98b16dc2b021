"""Checks of the saved state of an indexed block."""

import math
from typing import Any

from torch import Tensor

from torch_powalm.checks.state_checks import check_keys, check_tensor

VECTORS, SUMS = ("y", "value", "fresh"), ("squares", "excess", "slack")


def checked_indexed(state: Any, where: str, size: int, inequality: bool) -> dict[str, Tensor]:
    """Return the saved state of an indexed block; raise if an entry cannot be one.

    Args:
        state: what was saved.
        where: its place in the whole state, for messages.
        size: number of entries of the block.
        inequality: whether its multipliers must not be negative.
    """
    state = check_keys(state, where, (*VECTORS, *SUMS))
    found: dict[str, Tensor] = {}
    for name in (*VECTORS, *SUMS):
        place, value = f"{where}[{name!r}]", state[name]
        if name == "value" and isinstance(value, Tensor):  # nan was never seen
            check_tensor(value.nan_to_num(), place, shapes=[(size,)])
            found[name] = value
            continue
        low = 0.0 if name == "y" and inequality else -math.inf
        shape = (size,) if name in VECTORS else ()
        found[name] = check_tensor(value, place, shapes=[shape], low=low, mask=name == "fresh")
    return found
