"""Parameters that `fully_shard` (FSDP2) has split over processes, and gradients placed like them.

A sharded tensor is recognized by its method `full_tensor`, because importing its class takes
seconds, which every user would pay.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_powalm import functional
from torch_powalm.training.on_device import tensor_formulas


def full(tensor: Tensor) -> Tensor:
    """Gather a tensor that `fully_shard` has split; return any other tensor unchanged.

    For constraint functions that mix parameters with plain tensors or with each other:

        constraints.equality("orthonormal", lambda: full(net.W) @ full(net.W).T - torch.eye(10))
    """
    if is_sharded(tensor):
        whole: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
        return whole
    return tensor


def is_sharded(tensor: object) -> bool:
    """Whether a tensor is a DTensor."""
    return hasattr(tensor, "full_tensor")


def local(tensor: Any) -> Tensor:
    """Return this process's piece of a sharded tensor; any other tensor unchanged."""
    piece: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return piece


def as_shard(tensor: Tensor, p: Any) -> Tensor:
    """Return a gradient or a new value of p, placed like p."""
    if not is_sharded(p):
        return full(tensor)
    if not is_sharded(tensor):
        from torch.distributed.tensor import DTensor, Replicate

        everywhere = [Replicate()] * p.device_mesh.ndim
        tensor = DTensor.from_local(tensor, p.device_mesh, everywhere, run_check=False)
    shard: Tensor = tensor.redistribute(p.device_mesh, p.placements)  # type: ignore[attr-defined]
    return shard


def add_to_shards(params: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
    """Add each grad to p.grad, placed like p."""
    for p, grad in zip(params, grads, strict=True):
        if grad is None:
            continue
        if p.grad is None:
            p.grad = torch.empty_like(p).copy_(as_shard(grad, p))
        else:
            p.grad.add_(as_shard(grad, p))


def sharded_norm(*tensors: Any) -> float:
    """Return the Euclidean norm of several tensors, including the shards of all processes."""
    plain: list[Tensor] = []
    meshes: dict[Any, list[Any]] = {}
    for t in tensors:
        if is_sharded(t):
            meshes.setdefault(t.device_mesh, []).append(t)
        else:
            plain.append(t)
    norms = [functional.norm(*plain)]
    for mesh, shards in meshes.items():
        squares = torch.tensor([sum(map(_share, shards))], dtype=torch.float64)
        squares = squares.to(mesh.device_type)
        for dim in range(mesh.ndim):
            torch.distributed.all_reduce(squares, group=mesh.get_group(dim))
        norms.append(math.sqrt(squares.item()))
    return math.hypot(*norms)


def norm_on_device(*tensors: Any) -> Tensor:
    """Return `sharded_norm` as a 0-dim tensor, without reading it; at least one is needed."""
    plain = [t for t in tensors if not is_sharded(t)]
    if len(plain) == len(tensors):
        return tensor_formulas.norm(*plain)
    squares = [tensor_formulas.norm(*plain).square()] if plain else []
    meshes: dict[Any, list[Tensor]] = {}
    for t in tensors:
        if is_sharded(t):
            share = tensor_formulas.length(t.to_local()).square() / _copies(t)
            meshes.setdefault(t.device_mesh, []).append(share)
    for mesh, shares in meshes.items():
        total = torch.stack(shares).sum()
        for dim in range(mesh.ndim):
            torch.distributed.all_reduce(total, group=mesh.get_group(dim))
        squares.append(total)
    return torch.stack(squares).sum().sqrt()


def _share(shard: Any) -> float:
    """Return this process's share of ‖shard‖², divided by the number of replicas."""
    piece = shard.to_local()
    if piece.numel() == 0:
        return 0.0
    return functional.norm(piece) ** 2 / _copies(shard)


def _copies(shard: Any) -> int:
    """Return the number of processes that hold the same piece."""
    copies = 1
    for dim, placement in enumerate(shard.placements):
        copies *= int(shard.device_mesh.size(dim)) if placement.is_replicate() else 1
    return copies
