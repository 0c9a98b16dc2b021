"""augmented_loss: the value of the loss, with the gradient of loss + ⟨w, A⟩."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def augmented_loss(loss: Tensor, A: Tensor, w: Tensor, call: Any, alone: bool = False) -> Tensor:
    """Return the loss with the gradient of loss + ⟨w, A⟩, or of ⟨w, A⟩ if A stands alone.

    Args:
        loss: the loss.
        A: values of constraints, with a graph.
        w: their weights.
        call: its `done` becomes true when backward passes through the result. A graph of
            torch.compile cannot do this in backward; there it is true at once, and `assumed`.
        alone: whether the gradient of the loss is left out.
    """
    if torch.compiler.is_compiling():
        call.done = call.assumed = True
        call = None
    augmented: Tensor = AugmentedLoss.apply(loss, A, w, call, alone)
    return augmented


class AugmentedLoss(torch.autograd.Function):
    """The loss, with the gradient of loss + ⟨w, A⟩; backward marks the call as done."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, A: Tensor, w: Tensor, call: Any, alone: bool) -> Tensor:
        """Return the loss with its value unchanged; without its gradient if A stands alone."""
        ctx.save_for_backward(w)
        ctx.call, ctx.alone = call, alone
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        """Return the gradients with respect to loss and A."""
        if ctx.call is not None:
            ctx.call.done = True
        (w,) = ctx.saved_tensors
        loss_grad = torch.zeros_like(grad) if ctx.alone else grad
        return loss_grad, grad.to(w.dtype) * w, None, None, None


def newly_met(calls: Sequence[Any]) -> bool:
    """Whether the backward pass that now reaches the parameters is one of these calls."""
    new = [call for call in calls if call.done and not call.met]
    for call in new:
        call.met = True
    return bool(new)


def still_waiting(calls: Sequence[Any]) -> list[Any]:
    """Return the calls that remain when gradients are cleared: those without a backward pass.

    Nobody sees whether backward has passed through a compiled graph. Lightning clears gradients
    between forward and backward, so such a call survives the first clearing.
    """
    kept = [call for call in calls if call.assumed or not call.done]
    for call in kept:
        call.assumed = False
    return kept
