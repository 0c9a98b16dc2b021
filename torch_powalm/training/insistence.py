"""Insistence: a penalty that grows while a violation lasts, and falls where it overshoots.

The pull of the loss is measured in the first steps. Where it is stronger later, as behind a loss
that is easy without the constraint, the multipliers would need too long: they grow by steps of the
penalty. So the penalty grows from update to update while the violation v stays the same: it points
where it pointed before, and has not fallen to a half over the last updates. Where equalities change
their sign from one update to the next and do not fall to a half, the penalty is too stiff for the
steps of the base, and is halved.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

UPDATES = 5  # a violation lasts if it has been the same for this many updates
ALIGNED = 0.7  # least cosine between the violations of two updates that are the same
GROWTH = 1.2  # of the penalty at an update
DAMPING, LEAST = 0.5, 0.01  # factor of the penalty when an equality has changed its sign


class Insistence:
    """The factor of the penalty that lasting violations have brought about, and what it follows."""

    def __init__(self) -> None:
        self.gain = 1.0
        self.sizes: list[float] = []  # norms of the last violations, as long as they are the same
        self.last: Tensor | None = None  # direction of the last violation

    def follow(self, violation: Tensor, damps: bool) -> None:
        """Look at the scaled violation of an update; `damps` lets the penalty fall."""
        size = float(torch.linalg.vector_norm(violation))
        direction = violation / size if size > 0 else None
        cosine = 0.0
        if direction is not None and self.last is not None:
            cosine = float(torch.dot(direction, self.last))
        same = cosine >= ALIGNED
        if damps and cosine <= -ALIGNED and size > 0.5 * self.sizes[-1]:
            self.gain = max(LEAST, DAMPING * self.gain)
        self.sizes = [*self.sizes[-UPDATES:], size] if same else [size]
        self.last = direction
        if len(self.sizes) > UPDATES and size > 0.5 * self.sizes[0]:
            self.gain *= GROWTH

    def state_dict(self) -> dict[str, Any]:
        """Return what changes."""
        return {"gain": self.gain, "sizes": list(self.sizes), "last": self.last}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "Insistence":
        """Return an object with a saved state."""
        new = cls()
        new.gain, new.sizes, new.last = state["gain"], list(state["sizes"]), state["last"]
        return new
