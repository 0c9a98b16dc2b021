"""How the gradient of parameter-only blocks gets into .grad: one vector-Jacobian product.

Through `autograd.grad` and not through the loss, so that it enters once per step whatever the
accumulation, after GradScaler has unscaled, and without the hooks of DDP.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_powalm.functional import norm
from torch_powalm.ranks import Ranks
from torch_powalm.sharding import total_norm
from torch_powalm.vector import BlockVector, full_precision


def vjp(A: Tensor, params: Sequence[Tensor], w: Tensor) -> list[Tensor | None]:
    """J_Aᵀ w for every parameter; None where A does not depend on it."""
    wanted = [p for p in params if p.requires_grad]
    if not A.requires_grad or not wanted:
        return [None] * len(params)
    with full_precision(A.device):
        grads = iter(torch.autograd.grad(A, wanted, w.to(A.dtype), allow_unused=True))
    return [next(grads) if p.requires_grad else None for p in params]


def add_to_grad(params: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
    """p.grad += grad, in place where p.grad is dense."""
    sums: list[Tensor] = []
    terms: list[Tensor] = []
    for p, grad in zip(params, grads, strict=True):
        if grad is None:
            continue
        if p.grad is None:
            # Not the tensor itself: autograd may hand the same one to two parameters.
            p.grad = torch.empty_like(p).copy_(grad)
        elif p.grad.is_sparse:
            p.grad = grad + p.grad
        else:
            sums.append(p.grad)
            terms.append(grad)
    if sums:
        torch._foreach_add_(sums, terms)


def check_reach(vector: BlockVector, params: Sequence[Tensor]) -> None:
    """Raise when a parameter-only block has no gradient to any of the parameters."""
    with torch.enable_grad():
        values = vector.static_values()
    for name, value in values.items():
        if all(grad is None for grad in vjp(value, params, torch.ones_like(value))):
            raise ValueError(
                f"constraint {name!r} must depend on a parameter of the optimizer that requires a "
                "gradient, got none (functions should reach parameters through the module)"
            )


@torch.no_grad()
def check_ranks(vector: BlockVector, ranks: Ranks) -> None:
    """Raise when a parameter-only block is not the same on all ranks; all ranks must call it."""
    norms = {name: norm(value) for name, value in vector.static_values().items()}
    name = ranks.differing(norms, vector.device)
    if name is not None:
        raise RuntimeError(
            f"constraint {name!r} must be the same on every rank, got {norms[name]!r} as its "
            "norm here; use the same parameters and no random numbers on all ranks"
        )


def not_finite(vector: BlockVector, params: Sequence[Tensor]) -> str | None:
    """Name of the first parameter-only block whose gradient is not finite."""
    with torch.enable_grad():
        values = vector.static_values()
    for name, value in values.items():
        grads = vjp(value, params, torch.ones_like(value))
        if not total_norm([grad for grad in grads if grad is not None]) < float("inf"):
            return name
    return None
