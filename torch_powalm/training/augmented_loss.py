"""AugmentedLoss: the value of the loss, with the gradient of loss + ⟨w, A⟩."""

from typing import Any

import torch
from torch import Tensor


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
        ctx.call.done = True
        (w,) = ctx.saved_tensors
        loss_grad = torch.zeros_like(grad) if ctx.alone else grad
        return loss_grad, grad.to(w.dtype) * w, None, None, None
