"""What is checked before a trainer goes on: its checkpoint, and which ranks share a batch."""

import functools
import os
from typing import Any

from torch_powalm.files import check_checkpoint
from torch_powalm.optimizer import PowerALMOptimizer
from torch_powalm.ranks import Ranks


def check_before_loading(trainer: Any) -> None:
    """Have every checkpoint checked before the trainer's strategy reads it."""
    strategy = trainer.strategy
    if not isinstance(strategy.load_checkpoint, functools.partial):
        load = functools.partial(_load_checked, trainer, strategy.load_checkpoint)
        strategy.load_checkpoint = load


def _load_checked(trainer: Any, load: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
    """Load a checkpoint that is whole: of a folder every rank checks a part; all raise or none."""
    found = None
    try:
        if os.path.exists(path):
            check_checkpoint(path, trainer.global_rank, trainer.world_size)
    except ValueError as error:
        found = error
    if not trainer.strategy.reduce_boolean_decision(found is None):
        raise found or ValueError(
            f"checkpoint must be whole, got {path} (another rank has found damage)"
        )
    return load(path, *args, **kwargs)


def check_ranks(strategy: Any, optimizer: PowerALMOptimizer) -> None:
    """Raise when ranks that share a batch (tensor parallel) would count as ranks of their own."""
    mesh = getattr(strategy, "device_mesh", None)
    ranks = Ranks(optimizer.process_group).size
    if mesh is not None and mesh["data_parallel"].size() != ranks:
        raise ValueError(
            "process_group must have the ranks whose gradients are averaged "
            '(self.device_mesh["data_parallel"].get_group()), '
            f"got {ranks} instead of {mesh['data_parallel'].size()} ranks"
        )
