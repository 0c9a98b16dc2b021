"""FiniteValues: what happens when a constraint or a gradient is not finite."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_powalm.functional import norm
from torch_powalm.training.batch_window import BatchWindow, Tallies
from torch_powalm.training.block_vector import BlockVector
from torch_powalm.training.distributed.sharded_tensors import sharded_norm
from torch_powalm.training.vector_jacobian import vjp


class FiniteValues:
    """Checks of values that raise under the rule "raise", and return False under "skip".

    Args:
        blocks: the constraints and the parameters.
        on_nonfinite: the rule, "raise" or "skip".
    """

    def __init__(self, blocks: BlockVector, on_nonfinite: str) -> None:
        if on_nonfinite not in ("raise", "skip"):
            raise ValueError(f"on_nonfinite must be 'raise' or 'skip', got {on_nonfinite!r}")
        self.blocks, self.on_nonfinite = blocks, on_nonfinite

    def check(self, r: Tensor) -> bool:
        """Whether the values r of all blocks are finite."""
        return math.isfinite(norm(r)) or self.fail(f"constraint {self.blocks.not_finite(r)!r}")

    def check_statistics(self, *seen: Tallies) -> bool:
        """Whether the statistics of a batch are finite, even those that do not reach the value."""
        names = [b.name for b in self.blocks.batch if b.from_statistics is not None]
        pairs = ((name, sums[name].total) for sums in seen for name in names)
        name = next((name for name, total in pairs if not math.isfinite(norm(total))), None)
        return name is None or self.fail(f"statistics of constraint {name!r}")

    def fail_at_gradient(self, params: Sequence[Tensor], window: BatchWindow) -> bool:
        """Fail because .grad is not finite."""
        if self.on_nonfinite == "skip":
            return False
        return self.fail(source_of_nonfinite(self.blocks, params, window.loss_finite))

    def fail(self, what: str) -> bool:
        """Raise, or return False under the rule "skip"."""
        if self.on_nonfinite == "raise":
            raise FloatingPointError(f"{what} must be finite, got nan or inf")
        return False


def source_of_nonfinite(
    blocks: BlockVector, params: Sequence[Tensor], loss_finite: bool = True
) -> str:
    """Name the gradient that is not finite.

    One backward pass adds up the gradients of the loss and of the batch blocks. Where the values of
    both are finite, nothing tells afterwards which of these gradients is not, and both are named;
    torch.autograd.set_detect_anomaly(True) shows the operation.
    """
    with torch.enable_grad():
        values = blocks.static_values()
    for name, value in values.items():
        grads = vjp(value, params, torch.ones_like(value))
        if not sharded_norm(*[grad for grad in grads if grad is not None]) < math.inf:
            return f"gradient of constraint {name!r}"
    batch = ", ".join(repr(block.name) for block in blocks.batch)
    if not batch or not loss_finite:
        return "gradient of the loss"
    return f"gradient of the loss or of the batch constraints ({batch})"
