"""Held-out data that are split over processes."""

from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data.distributed import DistributedSampler

from torch_powalm.certification.held_out_data import sampler_of


def shared_over_ranks(values: dict[str, list[Any]], loader: Any) -> dict[str, list[Any]]:
    """Return the batches of all ranks, in the same order on each.

    Data are split over ranks if the loader has a DistributedSampler; all ranks must then call
    this. Otherwise every rank has all data, and nothing is exchanged.
    """
    sampler = sampler_of(loader)
    if not isinstance(sampler, DistributedSampler) or not dist.is_initialized():
        return values
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, {name: _on_cpu(rows) for name, rows in values.items()})
    return {name: [row for part in parts for row in part[name]] for name in values}


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, list | tuple):
        return type(value)(_on_cpu(part) for part in value)
    return value
