"""AugmentedGradient: turns .grad into ∇L_β = ∇loss + J_Aᵀ w, in two parts.

    augmented(loss, …)   batch blocks: backward of the augmented loss adds their part
    inject()             parameter-only blocks: added to .grad after backward, once per step

Both parts use the same weight w = y + β∇φ(r), where r is the vector of all blocks.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torch_powalm.dual import DualState
from torch_powalm.functional import norm
from torch_powalm.training.augmented_loss import augmented_loss
from torch_powalm.training.automatic_units import AutomaticUnits
from torch_powalm.training.batch_window import (
    BatchValues,
    BatchWindow,
    Tallies,
    carries_gradient,
    with_graph_of,
)
from torch_powalm.training.block_vector import BlockVector
from torch_powalm.training.distributed.comparison import compare_ranks
from torch_powalm.training.distributed.reductions import Ranks
from torch_powalm.training.distributed.sharded_tensors import sharded_norm
from torch_powalm.training.epoch_statistics import EpochStatistics
from torch_powalm.training.finite_values import FiniteValues
from torch_powalm.training.indexed.indexed_blocks import IndexedBlocks
from torch_powalm.training.on_device.device_state import DeviceState
from torch_powalm.training.run_settings import signature
from torch_powalm.training.running_estimate import RunningEstimate
from torch_powalm.training.update_schedule import UpdateSchedule
from torch_powalm.training.vector_jacobian import add_to_grad, check_reach, vjp


class AugmentedGradient:
    """Computes the gradient of L_β in .grad, and tracks the batches it comes from.

    Args:
        blocks: r = (A(x), B(x)), and the parameters x.
        dual: y and β.
        units: scales of the blocks.
        estimate: running averages of the batch blocks.
        epoch: whether the multipliers may start.
        schedule: when the multipliers move.
        ranks: the processes whose gradients are averaged.
        on_nonfinite: "raise" or "skip", for a value or gradient that is not finite.
    """

    def __init__(
        self,
        blocks: BlockVector,
        dual: DualState,
        units: AutomaticUnits,
        estimate: RunningEstimate,
        epoch: EpochStatistics,
        schedule: UpdateSchedule,
        ranks: Ranks,
        on_nonfinite: str,
    ) -> None:
        self.blocks, self.dual, self.ranks, self.schedule = blocks, dual, ranks, schedule
        self.units, self.estimate, self.epoch = units, estimate, epoch
        self.finite, self.window = FiniteValues(blocks, on_nonfinite), BatchWindow()
        self.indexed = IndexedBlocks(blocks, dual, units, ranks)
        self._device: DeviceState | None = None

    @property
    def device(self) -> DeviceState | None:
        """What waits on the device until the next update; None if steps are checked at once."""
        if self._device is None and self.blocks.deferred:
            self._device = DeviceState(self.blocks, self.dual, self.units, self.epoch)
        return self._device if self.blocks.deferred else None

    @property
    def weigh(self) -> Callable[[Tensor], Tensor | None]:
        """The function that returns w at r; None or nan if r is not finite."""
        return self.dual.weight if self.device is None else self.device.tensors.weight

    def augmented(self, loss: Tensor, batch: BatchValues) -> Tensor:
        """Return the loss with the gradient of loss + ⟨w, A⟩ for the values A of the batch."""
        if not carries_gradient(loss, {n: t.total for n, t in batch.proxy.items()}):
            return loss  # validation: nothing is kept
        blocks, (proxy, reported, whole, parts) = self.blocks, batch
        if not blocks.batch:
            return loss
        self.window.notice_cleared(blocks.params, blocks.sharded)
        seen, device = proxy, self.device
        if self.ranks.size > 1:
            self.meet_ranks()
            sums = proxy, reported, whole
            seen, reported, whole = self.ranks.sums(*sums, device=blocks.device, agreed=True)
            parts *= self.ranks.size  # undone by the mean of the gradients over ranks
        if self.estimate.on:
            whole = self.estimate.blend({name: t.divided(parts) for name, t in whole.items()})
            parts = 1
        A_batch = blocks.batch_values(proxy if whole is proxy else with_graph_of(proxy, whole))
        with torch.no_grad():
            static = blocks.evaluate() if blocks.static else None
        r = blocks.margin.in_steps(blocks.join(static, A_batch), blocks.sizes)
        if self.units.measuring or self.units.due_batch:
            self.units.measure_batch(loss, blocks, blocks.split_batch(A_batch), self.ranks)
        if not self.dual.started:
            self.start(r)
        w = self.weigh(r)
        told = None if reported is seen else blocks.batch_values(reported)
        finite = True
        if device is not None and w is not None:
            w = device.spoil(w, A_batch, told, seen, reported)
        else:
            finite = w is not None or self.finite.check(r)
            if told is not None:
                finite &= self.finite.check(blocks.join(static, told))
            finite &= self.finite.check_statistics(seen, reported)
            if w is None or not finite:  # on_nonfinite="skip": step() sees nan, and skips
                w = torch.full_like(r, math.nan)
        self.epoch.weight.add(w, finite and self.dual.started)
        w = w[blocks.static_size :] if blocks.static else w
        alone = finite and self.units.pending in blocks.sizes
        if finite and self.units.pending is not None:
            w = self.units.probe(blocks.split_batch(A_batch))
        call = self.window.add(seen, reported, loss)
        call.finite = finite
        w = w * parts if parts > 1 else w
        return augmented_loss(loss, A_batch, w, call, alone)

    def inject(self, batch: Tallies) -> bool:
        """Add J_Aᵀ w of the parameter-only blocks to .grad; False if a constraint is not finite.

        Args:
            batch: sums of the batch blocks that the gradients in .grad come from.
        """
        blocks = self.blocks
        if not blocks.static or self.window.is_injected:
            return True
        params, device = self.blocks.params, self.device
        if blocks.sharded and self.ranks.size > 1:
            self.ranks.agreement.in_step(blocks.device)
        if not blocks.verified:
            check_reach(blocks, params)
            compare_ranks(self)
            blocks.mark_verified()
        A_static, r = self.residual(batch)
        if self.units.measuring or self.units.due_static:
            self.units.measure_static(blocks)
            if self.units.measuring:
                # Nothing to add; a second call before the step must not measure again.
                held = next((p.grad for p in params if p.grad is not None), None)
                self.window.mark_injected(held)
                return self.finite.check(r) if device is None else device.note_static(r)
        if not self.dual.started:
            self.start(r)
        w = self.weigh(r)
        if device is not None:
            device.note_static(r)
        if w is None or A_static is None or not self.dual.started:
            return device is not None or self.finite.check(r)
        grads = vjp(A_static, params, w[: blocks.static_size] if blocks.batch else w)
        self.window.mark_injected(add_to_grad(params, grads, blocks.sharded))
        return True

    def start(self, r: Tensor) -> None:
        """Start the multipliers at the first finite r, once the units are known."""
        if self.units.measuring or self.epoch.warming:
            return
        if self.device is not None:
            self.device.start(r)
        elif self.finite.check(r):
            self.units.start(self.dual, self.blocks, r)
        self.indexed.start()

    def clear(self) -> None:
        """Forget all batches after a step."""
        self.ranks.agreement.end_step()
        self.window.clear()
        self.indexed.clear()

    def forget_done(self) -> None:
        """Forget the batches whose gradients were cleared."""
        self.window.forget_done()
        self.indexed.forget_done()
        if self._device is not None:
            self._device.guard.forgive()
            self._device.tensors.refresh()  # which a compiled step does not do
            self.indexed.refresh()

    def measures_alone(self) -> bool:
        """Whether .grad is that of one block alone, which is measured now; no step may follow."""
        if (name := self.units.pending) is not None:
            self.units.measure_pending(self.blocks.sizes.get(name, 1), self.blocks.params)
        return name is not None

    def residual(self, batch: Tallies) -> tuple[Tensor | None, Tensor]:
        """Return A of the parameter-only blocks with a graph, and the full r of this step."""
        blocks, A_static = self.blocks, None
        if self.estimate.on:
            batch = self.estimate.blend(self.per_call(batch))
        A_batch = blocks.batch_values(batch) if blocks.batch else None
        if blocks.static:
            with torch.enable_grad():
                A_static = blocks.evaluate()
        return A_static, blocks.margin.in_steps(blocks.join(A_static, A_batch), blocks.sizes)

    def per_call(self, sums: Tallies) -> Tallies:
        """Return the sums of a step divided by its micro-batches and ranks."""
        parts = max(1, self.window.parts) * self.ranks.size
        return {name: t.divided(parts) for name, t in sums.items()}

    def measure(self, units: AutomaticUnits | None) -> Any:
        """Return the norm of .grad; nan if it is not finite and on_nonfinite is "skip".

        A gradient that is too long for the base is shortened.

        Args:
            units: record the gradient there while units are measured.
        """
        params = self.blocks.params
        grads = [p.grad for p in params if p.grad is not None]
        if self.device is not None and grads:
            return self.device.measure(grads, params)
        now = sharded_norm(*grads) if self.blocks.sharded else norm(*grads)
        if math.isfinite(now):
            if not self.blocks.names:
                return now  # prox terms without constraints
            if self.units.measuring:
                if units is not None:
                    units.follow_rate(self.blocks.rate)
                    units.measure_pull(now, params)
            elif now > self.units.longest:
                for grad in grads:
                    grad.mul_(self.units.longest / now)
            return now
        self.finite.fail_at_gradient(params, self.window)
        return math.nan

    def meet_ranks(self) -> None:
        """At the first use, check that all ranks have the same blocks and settings."""
        blocks, run = self.blocks, (self.units, self.epoch, self.schedule)
        parts = self.dual, blocks, *run, self.finite.on_nonfinite
        self.ranks.agreement.meet(partial(signature, *parts), blocks.device, blocks.sharded)
