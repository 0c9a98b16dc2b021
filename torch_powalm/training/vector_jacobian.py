"""Vector-Jacobian products of parameter-only blocks, and functions that add them to .grad.

They are computed by `autograd.grad` and not through the loss. So they are added once per step,
regardless of accumulation, after GradScaler has unscaled, and without triggering DDP's hooks.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torch_powalm.functional import norm
from torch_powalm.prox import Proximable
from torch_powalm.training.block_vector import BlockVector
from torch_powalm.training.distributed.sharded_tensors import add_to_shards, full
from torch_powalm.training.full_precision import full_precision


def vjp(
    A: Tensor, params: Sequence[Tensor], w: Tensor, *, retain_graph: bool = False
) -> list[Tensor | None]:
    """Return J_Aᵀ w for every parameter; None where A does not depend on it."""
    wanted = [p for p in params if p.requires_grad]
    if not A.requires_grad or not wanted:
        return [None] * len(params)
    with full_precision(A.device):
        found = torch.autograd.grad(
            A, wanted, w.to(A.dtype), allow_unused=True, retain_graph=retain_graph
        )
    grads = iter(found)
    return [next(grads) if p.requires_grad else None for p in params]


def add_to_grad(
    params: Sequence[Tensor], grads: Sequence[Tensor | None], sharded: bool
) -> Tensor | None:
    """Add grads to p.grad, in place if it is dense; return the first .grad that changed."""
    if sharded:
        add_to_shards(params, grads)
    else:
        for p, grad in zip(params, grads, strict=True):
            if grad is None:
                continue
            if p.grad is None:
                # Copied, because autograd may return the same tensor for two parameters.
                p.grad = torch.empty_like(p).copy_(grad)
            elif p.grad.is_sparse:
                p.grad = grad + p.grad
            else:
                p.grad.add_(grad)
    touched = (p.grad for p, grad in zip(params, grads, strict=True) if grad is not None)
    return next(touched, None)


def stationarity(
    params: Sequence[Tensor], extra: Sequence[Tensor | None], terms: Mapping[Tensor, Proximable]
) -> float:
    """Return the distance from −(.grad + extra) to ∂g, where `terms` gives g by parameter."""
    distances = []
    for p, more in zip(params, extra, strict=True):
        grad = full(p.grad) if p.grad is not None else torch.zeros_like(p)
        if more is not None:
            grad = full(more) + grad
        term = terms.get(p)
        distances.append(norm(grad) if term is None else term.distance(full(p), grad))
    return math.hypot(*distances)


def check_reach(blocks: BlockVector, params: Sequence[Tensor]) -> None:
    """Raise if a parameter-only block has no gradient to any of the parameters."""
    with torch.enable_grad():
        values = blocks.static_values()
    for name, value in values.items():
        if all(grad is None for grad in vjp(value, params, torch.ones_like(value))):
            raise ValueError(
                f"constraint {name!r} must depend on a parameter of the optimizer that requires a "
                "gradient, got none (functions should reach parameters through the module)"
            )
