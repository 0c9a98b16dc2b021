"""MultiplierUpdate: the update of y and β from the residual of the epoch."""

import copy
import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torch_powalm.dual import DualState
from torch_powalm.functional import norm
from torch_powalm.result import DualRecord, Violation
from torch_powalm.training.distributed.comparison import compare_ranks
from torch_powalm.training.epoch_residual import epoch_residual
from torch_powalm.training.state_dict import SavedMultipliers
from torch_powalm.training.update_reading import UpdateReading, read_now

if TYPE_CHECKING:
    from torch_powalm.training.distributed.reductions import Ranks
    from torch_powalm.training.update_schedule import UpdateSchedule


class MultiplierUpdate(SavedMultipliers):
    """The part of PowerALMOptimizer that updates the multipliers."""

    schedule: "UpdateSchedule"
    ranks: "Ranks"

    @torch.no_grad()
    def update_multipliers(self, **exact: Tensor) -> DualRecord:
        """Update y and β from the current residual, and start a new epoch.

        Batch blocks use the averages of the epoch, or the exact values passed here by name.
        """
        blocks, dual, schedule = self.blocks.ready(), self.dual, self.schedule
        compare_ranks(self.gradient, exact)
        steps = self.epoch.steps, self.epoch.total_steps
        seen = {*self.constraints.epoch_sums(blocks.sizes), *exact}
        if self.epoch.skipped and any(block.name not in seen for block in blocks.batch):
            return self._skipped_record()  # all steps since the last update were skipped
        waiting = self.units.measuring or self.epoch.warming or not blocks.names
        if waiting or schedule.is_too_soon(*steps):
            if not self.epoch.total_steps and not self.units.change:
                epoch_residual(blocks, self.constraints, exact)  # raises if a batch is missing
            found = self.constraints.violations()
            return self._record({name: found[name] for name in blocks.names})
        residual = epoch_residual(blocks, self.constraints, exact)
        self.gradient.indexed.move()
        reading = self._read(residual)
        violations = blocks.violations(reading.r, reading.seen)
        if self.gradient.device is not None:
            for signal in self.gradient.device.culprits(self.gradient.finite):
                self.monitor.signals.report(signal)
        if self.units.measuring:  # the device says only now that steps were left out
            return self._record(violations)
        r, all_left_out = self._tightened(reading.r), self.epoch.steps == 0 < steps[0]
        if self.gradient.finite.check(r) and not all_left_out:
            if not dual.started:
                self.units.start(dual, blocks, r)
            growth = part = None
            if dual.scale is not None and self.units.steps:
                self.units.follow_rate(reading.rate)
                self.units.renew(dual, blocks, r)
                growth = self.units.beta(schedule.progress(self.epoch.total_steps)) / dual.beta
                left = schedule.left(self.epoch.total_steps)
                part = self.units.part(r, blocks, dual, steps[0], left)
            before = copy.copy(dual)
            moved = dual.update(r, growth=growth, part=part)
            self._check_overflow(before)
            record = dataclasses.replace(moved, violations=violations)
        else:
            record = dataclasses.replace(self._record(violations), primal_residual=math.nan)
            self.epoch.count_skipped()
        if blocks.indexed:
            self.gradient.indexed.renew()
            record = self.gradient.indexed.described(record, reading.indexed)
        record = self.monitor.after_update(record, reading._replace(r=r))
        latest = blocks.split(residual)
        self.constraints.restart_epoch({b.name: latest[b.name].clone() for b in blocks.batch})
        self.epoch.restart()
        return record

    def _check_overflow(self, before: DualState) -> None:
        """Raise with the name of a multiplier that has overflowed, and leave them as before."""
        if not bool(self.dual.y.isfinite().all()):
            name, dtype = self.blocks.not_finite(self.dual.y), self.dual.y.dtype
            self.dual.take_over(before)
            raise FloatingPointError(
                f"multiplier of constraint {name!r} must fit into {dtype}, got an overflow; "
                "set y_max, or lower beta_1 or the scale of the constraint"
            )

    def _skipped_record(self) -> DualRecord:
        """Return a record without an update, if no batch has been finite since the last one."""
        record = dataclasses.replace(self._record({}), primal_residual=math.nan)
        self.epoch.count_skipped()
        self.epoch.restart()
        return record

    def _read(self, r: Tensor) -> UpdateReading:
        """Return what an update sees, given the residual of the epoch."""
        more, device = self.gradient.indexed.summaries(), self.gradient.device
        weight = self.epoch.weight.take()
        if device is None:
            return read_now(self.blocks, r, more)._replace(weight=weight)
        reading = device.read_update(r, more if weight is None else [*more, weight])
        found = reading.indexed
        weight = None if weight is None else found[-1]
        return reading._replace(indexed=found[: len(more)], weight=weight)

    def _tightened(self, asked: Tensor) -> Tensor:
        """Return the residual with margins, which held-out data renew if it is time."""
        margin, blocks, steps = self.blocks.margin, self.blocks, self.epoch.total_steps
        if margin.is_due(steps) and math.isfinite(norm(asked)):
            values = blocks.split(asked)
            batch = {block: values[block.name] for block in blocks.batch}
            margin.measure(self.constraints, batch, self.multipliers(), self.ranks, steps)
        margin.restart()
        return margin.in_updates(asked, blocks.sizes)

    def _record(self, violations: Mapping[str, Violation]) -> DualRecord:
        """Return a record of violations without an update."""
        primal = math.hypot(*[v.norm for v in violations.values()])
        dual = self.dual
        return DualRecord(dual.k, primal, dual.beta, 0.0, norm(dual.y), violations)

    def set_length(self, total_steps: int | None, *, manual: bool = False) -> None:
        """Set the length of the run, None if not known; `manual` ends automatic updates."""
        self.schedule.set_length(total_steps, manual)
        if self.units.steps and not self.units.pull:
            self.units.set_steps(self.schedule.measuring_steps)
