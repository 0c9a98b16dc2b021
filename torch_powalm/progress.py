"""A progress bar of the outer loop: how far the residuals have come on a log scale."""

import math
import sys

from torch_powalm.result import OuterRecord

_WIDTH = 20


class ProgressBar:
    """One line on the standard error that is written over at every outer iteration.

    Args:
        shown: whether anything is written at all.
        eps_phi: tolerance of the dual residual.
        eps_A: tolerance of the primal residual.
    """

    def __init__(self, shown: bool, eps_phi: float, eps_A: float) -> None:
        self.shown, self.eps_phi, self.eps_A = shown, eps_phi, eps_A
        self.first = 1.0  # log of the first distance to the tolerances

    def show(self, record: OuterRecord) -> None:
        """Draw the iteration: full when both residuals are within their tolerances."""
        if not self.shown:
            return
        ratio = max(record.primal_residual / self.eps_A, record.dual_residual / self.eps_phi)
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
