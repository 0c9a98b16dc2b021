"""Which steps `torch.compile` may trace: those that measure nothing and update nothing.

A graph holds tensor operations. Lists that grow while units are measured, and an update, which
reads from the device and decides in Python, are no part of it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_powalm.training.optimizer import PowerALMOptimizer


def is_steady(optimizer: "PowerALMOptimizer") -> bool:
    """Whether the next step measures nothing, starts nothing and does not end with an update."""
    units, epoch = optimizer.units, optimizer.epoch
    if not optimizer.gradient.blocks.deferred or not optimizer.dual.started or epoch.warming:
        return False
    if units.measuring or units.due_batch or units.due_static or units.pending is not None:
        return False
    return not optimizer.schedule.is_due(epoch.steps + 1, epoch.total_steps + 1)
