"""MeanWeight: the mean weight w = y + β∇φ that acted in the steps since an update."""

import torch
from torch import Tensor


class MeanWeight:
    """Mean of what multiplied the gradients of the constraints since the last update.

    It differs from y + β∇φ of the mean residual, since a weight is never negative: the penalty of
    an inequality pulls in batches that are above the bound, and in no direction in the others.
    """

    def __init__(self) -> None:
        self._sums: Tensor | None = None  # of the weights, and their number as the last entry

    def add(self, w: Tensor, started: bool) -> None:
        """Add the weight of a batch once multipliers have started.

        Values that are not finite, of a batch that is left out, count as 0.
        """
        if not started:
            return
        w = w.detach().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        new = torch.nn.functional.pad(w, (0, 1), value=1.0)
        self._sums = new if self._sums is None else self._sums + new

    def take(self) -> Tensor | None:
        """Return the mean, and start anew; nan after no batch, None if there never was one."""
        if self._sums is None:
            return None
        mean = self._sums[:-1] / self._sums[-1]
        # Not None, which would make torch.compile trace the next step anew.
        self._sums = torch.zeros_like(self._sums)
        return mean
