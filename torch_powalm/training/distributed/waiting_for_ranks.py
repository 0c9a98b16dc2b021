"""Waiting for all ranks at the first use of their optimizers, for a limited time."""

import os
from datetime import timedelta

import torch.distributed as dist

from torch_powalm.training.optimizer_protocol import default_store

DEADLINE = 12.0  # seconds until all ranks must have used their optimizers for the first time
_contacts = 0  # first uses of optimizers in this process


def deadline() -> float:
    """Return the seconds to wait for the other ranks, TORCH_POWALM_DEADLINE if it is set."""
    return float(os.environ.get("TORCH_POWALM_DEADLINE", DEADLINE))


def wait_for_all(ranks: list[int]) -> None:
    """Wait until all ranks have come here, and raise with the names of those that have not."""
    global _contacts
    _contacts += 1
    store, prefix = default_store(), f"powalm/{min(ranks)}-{len(ranks)}/{_contacts}"
    store.set(f"{prefix}/{dist.get_rank()}", "here")
    try:
        store.wait([f"{prefix}/{rank}" for rank in ranks], timedelta(seconds=deadline()))
    except Exception as error:
        missing = [rank for rank in ranks if not store.check([f"{prefix}/{rank}"])]
        raise RuntimeError(
            f"all ranks must use their optimizers within {deadline():g} seconds of each other "
            f"(set TORCH_POWALM_DEADLINE to wait longer), got nothing from {numbered(missing)}"
        ) from error


def numbered(ranks: list[int]) -> str:
    """Return ranks in words."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
