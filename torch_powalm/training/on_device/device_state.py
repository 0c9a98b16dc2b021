"""DeviceState: what a training keeps on the device between two updates, and how it is read."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_powalm.dual import DualState
from torch_powalm.training.automatic_units import AutomaticUnits
from torch_powalm.training.batch_window import Tallies
from torch_powalm.training.block_vector import BlockVector
from torch_powalm.training.distributed.sharded_tensors import norm_on_device
from torch_powalm.training.epoch_statistics import EpochStatistics
from torch_powalm.training.finite_values import FiniteValues, source_of_nonfinite
from torch_powalm.training.on_device.dual_tensors import DualTensors
from torch_powalm.training.on_device.step_guard import StepGuard
from torch_powalm.training.on_device.tensor_formulas import norm
from torch_powalm.training.on_device.transfer import to_host
from torch_powalm.training.update_reading import UpdateReading, sample


class DeviceState:
    """Multipliers, flags and measurements on the device.

    Args:
        blocks: the blocks, with known sizes.
        dual: y and β on the host.
        units: measurements, of which some may still be on the device.
        epoch: counters and gradient norm.
    """

    def __init__(
        self,
        blocks: BlockVector,
        dual: DualState,
        units: AutomaticUnits,
        epoch: EpochStatistics,
    ) -> None:
        self.blocks, self.dual, self.units, self.epoch = blocks, dual, units, epoch
        self.tensors = DualTensors(dual, blocks.device)
        units.defer(True)
        indexed = {part.name: 1 for part in blocks.indexed}
        self.guard = StepGuard({**blocks.sizes, **indexed}, blocks.device)
        self.start_norms: Tensor | None = None  # ‖∇φ(r_1)‖ and ‖r_1‖, until they are read

    def start(self, r: Tensor) -> None:
        """Start the multipliers in the measured units; r stays where it is."""
        host = torch.zeros(r.shape, dtype=r.dtype)
        self.units.start(self.dual, self.blocks, host)
        self.tensors.publish()
        self.start_norms = self.tensors.start_norms(r)

    def spoil(self, w: Tensor, A_batch: Tensor, told: Tensor | None, *sums: Tallies) -> Tensor:
        """Return the weight of a batch, nan if a value of the batch is not finite.

        Args:
            w: the weight of all blocks.
            A_batch: the values of the batch blocks.
            told: the values to report, if these are others.
            *sums: what the values come from; statistics need not reach them.
        """
        start = self.blocks.static_size
        wrong = self.guard.note(A_batch, start)
        if told is not None:
            wrong = wrong | self.guard.note(told, start)
        for block in self.blocks.batch:
            if block.from_statistics is not None:
                for one in sums:
                    wrong = wrong | self.guard.note(one[block.name].total.sum()[None], start)
            start += self.blocks.sizes[block.name]
        return w.masked_fill(wrong, math.nan)

    def spoil_indexed(self, name: str, value: Tensor, w: Tensor) -> Tensor:
        """Return the weight of an indexed block, nan if a value in the batch is not finite."""
        names = [part.name for part in self.blocks.indexed]
        start = sum(self.blocks.sizes.values()) + names.index(name)
        wrong = self.guard.note(value.detach().sum(0, keepdim=True), start)
        return w.masked_fill(wrong, math.nan)

    def note_static(self, r: Tensor) -> bool:
        """Leave this step out if a parameter-only block is not finite."""
        guard = self.guard
        guard.wrong = guard.wrong | guard.note(r[: self.blocks.static_size])
        return True

    def measure(self, grads: Sequence[Tensor], params: Sequence[Tensor]) -> Tensor | float:
        """Return the norm of .grad, and judge this step; shorten a gradient that is too long.

        The norm is nan if the host must skip this step.
        """
        now, units = norm_on_device(*grads), self.units
        self.guard.judge(now)
        if self.guard.refuses(self.blocks.base, params):
            return math.nan
        if units.measuring and self.blocks.names:
            units.follow_rate(self.blocks.rate)
            units.measure_pull(now, params)
        elif self.blocks.names and units.longest < math.inf:
            shorter = (units.longest / now).clamp(max=1.0).nan_to_num(1.0)
            for grad in grads:
                grad.mul_(shorter.to(grad.dtype))
        return now

    def finish(self, base: Optimizer, new: Tallies, old: Tallies) -> Tallies:
        """After a step, undo it unless it counts; return the sums of the epoch that are true.

        At the end of the warm-up the flags are read, since steps left out make it longer.
        """
        sums = self.guard.finish(base, new, old)
        if self.epoch.total_steps + 1 == self.epoch.warm_up:
            self.read()
        return sums

    def culprits(self, finite: FiniteValues) -> list[str]:
        """Raise, or return a signal, if a value was not finite, as far as the host knows."""
        guard = self.guard
        if not guard.culprits and not guard.bad_gradients:
            return []
        names = [f"constraint {name!r}" for name in guard.culprits]
        names = names or [source_of_nonfinite(self.blocks, self.blocks.params)]
        guard.forget()
        finite.fail(names[0])
        return [f"not finite: {', '.join(names)}"]

    def read(self, extra: Sequence[Tensor] = ()) -> list[Tensor]:
        """Read everything that waits on the device, and `extra`, in one transfer.

        Returns `extra` on the host.
        """
        lengths, gradient_norm = self.units.unread(), self.epoch.gradient_norm
        parts = [self.guard.bad, self.guard.counts, *lengths]
        parts += [gradient_norm] if isinstance(gradient_norm, Tensor) else []
        parts += [] if self.start_norms is None else [self.start_norms]
        found = to_host([*parts, *extra])
        numbers = iter(found)
        self.epoch.leave_out(self.guard.take(next(numbers), next(numbers)))
        self.units.read(float(next(numbers)) for _ in lengths)
        if isinstance(gradient_norm, Tensor):
            self.epoch.gradient_norm = float(next(numbers))
        if self.start_norms is not None:
            self._take_start(*next(numbers).tolist())
        return found[len(parts) :]

    def read_units(self) -> None:
        """Read the measurements of the first steps, before multipliers start."""
        moves = self._moves()
        self._take_moves(self.read(moves))

    def read_update(self, r: Tensor, more: Sequence[Tensor]) -> UpdateReading:
        """Read what an update sees and more, in one transfer."""
        blocks, moves = self.blocks, [] if self.dual.started else self._moves()
        self.units.follow_rate(blocks.rate)
        seen = blocks.seen()
        r, x, *rest = self.read([r, sample(blocks), *seen.values(), *more, *moves])
        masks, rest = dict(zip(seen, rest, strict=False)), rest[len(seen) :]
        self._take_moves(rest[len(more) :])
        return UpdateReading(r, masks, x, self.units.rate, rest[: len(more)])

    def _moves(self) -> list[Tensor]:
        """Return the lengths of the moves of all parameters as a vector, if they are to be read."""
        units, blocks = self.units, self.blocks
        if not units.at or units.steps <= 1 or blocks.sharded:
            return []
        return [torch.stack([norm(move) for move in units.sampled_moves(blocks.params)])]

    def _take_moves(self, lengths: Sequence[Tensor]) -> None:
        if lengths:
            self.units.take_moves(lengths[0].tolist())

    def _take_start(self, start_norm: float, last_norm: float) -> None:
        """Give the norms of the first r to the multipliers; r may not have been finite."""
        self.start_norms = None
        norms = {"start_norm": start_norm, "last_norm": last_norm}
        finite = {name: n for name, n in norms.items() if n < float("inf")}
        self.dual.load_state_dict({**self.dual.state_dict(), **finite})
