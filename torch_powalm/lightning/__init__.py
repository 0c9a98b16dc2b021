"""Lightning callbacks: update and log the multipliers, keep the best feasible model.

    trainer = L.Trainer(callbacks=[PowerALMCallback(), FeasibleCheckpoint(tolerance=1e-3)])

A module with batch blocks calls `self.optimizers().augment(loss, …)` in training_step, and
`self.constraints.observe(…)` in validation_step to see their violations there.
"""

from torch_powalm.lightning.callback import PowerALMCallback
from torch_powalm.lightning.feasible_checkpoint import FeasibleCheckpoint
from torch_powalm.training.feasibility import feasible_loss

__all__ = ["FeasibleCheckpoint", "PowerALMCallback", "feasible_loss"]
