"""A progress bar of the outer loop: how far the residuals have come on a log scale."""

import math
import sys

from torch_powalm.result import OuterRecord
from torch_powalm.solving.settings import Tolerances

_WIDTH = 20


class ProgressBar:
    """One line on standard error, redrawn after every outer iteration.

    Args:
        shown: whether anything is written at all.
        tolerances: residuals at which the bar is full.
    """

    def __init__(self, shown: bool, tolerances: Tolerances) -> None:
        self.shown, self.tolerances = shown, tolerances
        self.first = 1.0  # log of the first ratio of residuals to tolerances

    def show(self, record: OuterRecord) -> None:
        """Draw an iteration; the bar is full when both residuals are within their tolerances."""
        if not self.shown:
            return
        ratio = self.tolerances.ratio(record.primal_residual, record.dual_residual)
        left = math.log(ratio) if 1 < ratio < math.inf else 0.0 if ratio <= 1 else self.first
        if record.k == 1:
            self.first = max(left, 1e-9)
        done = round(_WIDTH * min(1.0, max(0.0, 1 - left / self.first)))
        line = (
            f"[{'#' * done}{'.' * (_WIDTH - done)}] {record.k}: "
            f"primal {record.primal_residual:.1e}, dual {record.dual_residual:.1e}, "
            f"beta {record.beta:.1e}, {record.gradient_calls} gradients, {record.seconds:.1f} s"
        )
        print(f"\r{line:<100}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the line."""
        if self.shown:
            print(file=sys.stderr)
