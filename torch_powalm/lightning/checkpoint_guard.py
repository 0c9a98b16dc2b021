"""Checks of a trainer: its checkpoint before loading, and its process group before training."""

import functools
import os
from typing import Any

from torch_powalm.lightning.compat import guard_loading
from torch_powalm.training.checkpoint_checks import CheckpointError, check_checkpoint
from torch_powalm.training.optimizer import PowerALMOptimizer


def check_before_loading(trainer: Any) -> None:
    """Make the trainer's strategy check every checkpoint before it reads it."""
    guard_loading(trainer.strategy, functools.partial(_check_on_all_ranks, trainer))


def _check_on_all_ranks(trainer: Any, path: Any) -> None:
    """Check a checkpoint; each rank checks a part of a folder. Either all ranks raise or none."""
    found = None
    try:
        if os.path.exists(path):
            check_checkpoint(path, trainer.global_rank, trainer.world_size)
    except Exception as error:
        found = error if isinstance(error, CheckpointError) else CheckpointError(path, error)
    if not trainer.strategy.reduce_boolean_decision(found is None):
        raise found or CheckpointError(path, "another rank found damage")


def check_ranks(strategy: Any, optimizer: PowerALMOptimizer) -> None:
    """Raise if ranks that share a batch (tensor parallel) would count as separate ranks."""
    mesh, ranks = getattr(strategy, "device_mesh", None), optimizer.ranks.size
    if mesh is not None and mesh["data_parallel"].size() != ranks:
        raise ValueError(
            "process_group must have the ranks whose gradients are averaged "
            '(self.device_mesh["data_parallel"].get_group()), '
            f"got {ranks} instead of {mesh['data_parallel'].size()} ranks"
        )
