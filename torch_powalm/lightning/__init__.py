"""Lightning: when multipliers are updated, what is logged, which checkpoint is the best.

    trainer = L.Trainer(callbacks=[PowerALMCallback(), FeasibleCheckpoint(tolerance=1e-3)])

The module calls `self.optimizers().augment(loss, …)` in training_step, where it has batch blocks,
and `self.constraints.observe(…)` in validation_step, where it wants to see them there.
"""

from torch_powalm.lightning.callback import PowerALMCallback
from torch_powalm.lightning.feasible import FeasibleCheckpoint, feasible_loss

__all__ = ["FeasibleCheckpoint", "PowerALMCallback", "feasible_loss"]
