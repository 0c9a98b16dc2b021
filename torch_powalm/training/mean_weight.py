"""MeanWeight: the mean weight w = y + β∇φ that acted in the steps since an update."""

import torch
from torch import Tensor


class MeanWeight:
    """Mean of what multiplied the gradients of the constraints since the last update.

    It differs from y + β∇φ of the mean residual, since a weight is never negative: the penalty of
    an inequality pulls in batches that are above the bound, and in no direction in the others.
    """

    def __init__(self) -> None:
        self._total: Tensor | None = None
        self._batches = 0  # counted in steps, where one more counter costs torch.compile nothing

    def add(self, w: Tensor, acts: bool) -> None:
        """Add the weight of a batch, unless it does not act yet or the batch is left out."""
        if acts:
            self._total = w if self._total is None else self._total + w

    def count(self, batches: int) -> None:
        """Count the batches of a step."""
        self._batches += batches

    def take(self) -> Tensor | None:
        """Return the mean, and start anew; None without a batch."""
        total, batches = self._total, self._batches
        if total is None or not batches:
            return None
        # Not None, which would make torch.compile trace the next step anew.
        self._total, self._batches = torch.zeros_like(total), 0
        return total / batches
