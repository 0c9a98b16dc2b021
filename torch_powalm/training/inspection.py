"""Inspection: what a user can ask an optimizer; none of it changes the training."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torch_powalm.result import TrainingResiduals
from torch_powalm.training.distributed.comparison import compare_ranks
from torch_powalm.training.feasibility import Tolerance
from torch_powalm.training.history import History
from torch_powalm.training.optimizer_protocol import OptimizerProtocol
from torch_powalm.training.prices import UPDATES, Price, prices
from torch_powalm.training.report import ConstraintReport, make_report
from torch_powalm.training.training_residuals import training_residuals

if TYPE_CHECKING:
    from torch_powalm.dual import DualState
    from torch_powalm.training.augmented_gradient import AugmentedGradient
    from torch_powalm.training.automatic_units import AutomaticUnits
    from torch_powalm.training.block_vector import BlockVector
    from torch_powalm.training.epoch_statistics import EpochStatistics
    from torch_powalm.training.monitor import Monitor
    from torch_powalm.training.prox_terms import ProxTerms
    from torch_powalm.training.update_schedule import UpdateSchedule


class Inspection(OptimizerProtocol):
    """The questions of PowerALMOptimizer, in the order of their use."""

    blocks: "BlockVector"
    dual: "DualState"
    epoch: "EpochStatistics"
    gradient: "AugmentedGradient"
    monitor: "Monitor"
    prox: "ProxTerms"
    schedule: "UpdateSchedule"
    units: "AutomaticUnits"

    def report(self, tolerance: Tolerance | None = None) -> ConstraintReport:
        """Return where every block stands: violation, multiplier, price and status.

        Batch blocks are judged by their average since the last multiplier update, or by that of the
        update if no batch has come since then; functions of the parameters are evaluated now.

        Args:
            tolerance: largest violation that counts as met, a number or a mapping by block. The
                default is 1 % of the violation that a move of the parameters by a tenth of their
                length can remove, as measured in the first steps; 1e-3 if nothing was measured.
        """
        self.monitor.signals.before_report()
        return make_report(self.monitor, tolerance)

    @property
    def history(self) -> History:
        """The multiplier updates so far, as a table: `to_dataframe()`, `to_csv(path)`, `plot()`."""
        return self.monitor.history

    @property
    def is_steady(self) -> bool:
        """Whether the next step measures nothing, starts nothing and ends with no update.

        Such a step is a graph without a break for `torch.compile`, if checks wait for the update
        (`check_finite`): take others without it.
        """
        epoch, units = self.epoch, self.units
        if not self.blocks.deferred or not self.dual.started or epoch.warming:
            return False
        if units.measuring or units.due_batch or units.due_static or units.pending is not None:
            return False
        return not self.schedule.is_due(epoch.steps + 1, epoch.total_steps + 1)

    def should_update(
        self,
        *,
        steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int = 1,
        lam: float | None = None,
    ) -> bool:
        """Whether a multiplier update is due under exactly one of three rules.

        Args:
            steps: number of steps between updates.
            epochs: number of epochs between updates, of `steps_per_epoch` steps each.
            steps_per_epoch: for `epochs`, usually len(loader).
            lam: due when the running norm of the augmented gradient is at most lam/β (Algorithm 1).
                With measured units, the norm is relative to that of the loss in the first steps,
                and β to its unit, so that lam has no units; never due while they are measured.
        """
        inverse_penalty = self.units.inverse_penalty(self.dual)
        return self.epoch.is_due(steps, epochs, steps_per_epoch, lam, inverse_penalty)

    def multipliers(self) -> dict[str, Tensor]:
        """Return y by block; 0 before they start. `prices` has what a unit of each entry costs."""
        sizes, y = self.blocks.ready().sizes, self.dual.y
        if not self.dual.started:
            y = torch.zeros(sum(sizes.values()), device=self.blocks.device)
        found = self.blocks.split(y.clone().to(self.blocks.device))
        return found | {part.name: part.y.clone() for part in self.blocks.indexed}

    def prices(self, last: int = UPDATES) -> dict[str, list[Price]]:
        """Return by block what one unit of each bound costs in loss, with its range.

        The range is that of the multipliers over the last updates: wide if they have not settled.
        With constraints of the batch, the part of the penalty in the steps between is added. Empty
        before the first update, and with more than 1,000 multipliers.

        Args:
            last: number of updates, ≥ 1.
        """
        return prices(self.history.rows, last)

    def margins(self) -> dict[str, Tensor]:
        """Return by block how much stricter than asked for the multipliers see it, now."""
        blocks = self.blocks.ready()
        none = torch.zeros(sum(blocks.sizes.values()), device=blocks.device)
        return blocks.split(blocks.margin.in_updates(none, blocks.sizes))

    @torch.no_grad()
    def residuals(self) -> TrainingResiduals:
        """Return the norms of the augmented gradient and the constraints; call after backward."""
        return training_residuals(self.gradient, self.prox)

    def check_ranks(self) -> None:
        """Raise if a parameter-only block differs between ranks; all ranks must call it.

        Each rank adds the gradient of these blocks on its own. The first step runs this check.
        """
        compare_ranks(self.gradient)

    def __repr__(self) -> str:
        owned = ", ".join(self.blocks.names) or "no constraints"
        dual = f"nu={self.dual.nu}, beta={self.dual.beta:g}"
        owned += f" and {len(self.params)} parameters"
        return f"PowerALMOptimizer({dual}, owns {owned})\n{self.base!r}"
