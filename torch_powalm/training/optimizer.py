"""PowerALMOptimizer: a torch optimizer that trains under constraints.

One training step from top to bottom, and the file of each part:

    augment(loss, …)      values of the batch                          batch_window.py
                          loss with the gradient of loss + ⟨w, A⟩      augmented_gradient.py
    step()                parameter-only blocks: p.grad += J_Aᵀ w      augmented_gradient.py
                          step of the base, then prox                  optimizer_protocol.py, prox/
    update_multipliers()  residual r of the epoch                      multiplier_update.py
                          y += σ∇φ(r), β ← ωβ                          dual.py
                          a record for the history                     monitor.py
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, SGD, Optimizer

from torch_powalm.dual import DualState
from torch_powalm.prox import Proximable
from torch_powalm.training.augmented_gradient import AugmentedGradient
from torch_powalm.training.automatic_units import AutomaticUnits
from torch_powalm.training.base_step import initializes_state, search, searches
from torch_powalm.training.batch_window import Tallies, read_batch
from torch_powalm.training.block import BatchValue
from torch_powalm.training.block_vector import BlockVector
from torch_powalm.training.distributed.backward_hook import watch_backward
from torch_powalm.training.distributed.reductions import Ranks
from torch_powalm.training.epoch_statistics import EpochStatistics
from torch_powalm.training.given_units import Penalty, largest_penalty, penalty_factors
from torch_powalm.training.handover import hand_over
from torch_powalm.training.margin import Margin, Margins, MarginSource
from torch_powalm.training.monitor import Monitor
from torch_powalm.training.multiplier_update import MultiplierUpdate
from torch_powalm.training.optimizer_protocol import is_observed, step_base
from torch_powalm.training.prox_terms import ProxTerms
from torch_powalm.training.proxy_value import ProxyValue
from torch_powalm.training.registry import ConstraintRegistry
from torch_powalm.training.running_estimate import RunningEstimate
from torch_powalm.training.update_schedule import UpdateSchedule


class PowerALMOptimizer(MultiplierUpdate):
    """Wraps a torch optimizer so that training solves min loss(x) s.t. A(x) = 0, B(x) ≤ 0.

    Args:
        base: the optimizer that takes the steps.
        constraints: the blocks A and B.
        nu: exponent of the penalty, in (0, 1]; 1 is the classical method, smaller is sharper.
        beta_1: first penalty β, > 0, or a mapping with one for every block. None measures it.
        omega: growth of β at every multiplier update, ≥ 1.
        sigma: dual step, "penalty" (σ = β) or "paper" (starts at sigma_1 and keeps y bounded).
        sigma_1: first dual step of the rule "paper", ≥ 0.
        beta_max: largest β.
        y_max: largest absolute multiplier.
        sufficient_decrease: in (0, 1): β grows only if the residual has not fallen by this factor.
        coupling: "all" (one norm over all blocks, as in the paper) or "block" (one norm each).
        updates: when multipliers move: "auto" (inside `step`), "epoch" (only when you call
            `update_multipliers`) or a number of steps; None is "epoch" with beta_1, else "auto".
        total_steps: length of the run in steps, if known; "auto" spreads its updates over it.
        prox: convex terms by parameter; their prox is applied after each step, with the group's lr.
        owns: names of the blocks that belong to this optimizer; None for all.
        on_nonfinite: what to do with a value or gradient that is not finite: "raise", or "skip"
            the step or update and count it in `epoch.skipped`.
        check_finite: when this is noticed: "every_step", "at_update" (until then, steps read
            nothing from the device, and a bad one changes nothing), or "auto", by device.
        warm_up: number of first steps without multipliers; their gradient is that of the loss.
        process_group: the processes that average their gradients; None for the default group.
        margin: how much stricter the multipliers see inequalities, ≥ 0: a number, numbers by name,
            or "auto": as much as a certificate needs, measured on `held_out`.
        held_out: the data of margin="auto".

    Attributes:
        dual: y, β and k.
        epoch: steps and gradient norm since the last multiplier update, and all skipped steps.

    Example:
        optimizer = PowerALMOptimizer(torch.optim.Adam(model.parameters()), constraints, nu=0.8)
    """

    def __init__(
        self,
        base: Optimizer,
        constraints: ConstraintRegistry,
        *,
        nu: float = 0.8,
        beta_1: Penalty = None,
        omega: float = 1.0,
        sigma: str = "penalty",
        sigma_1: float | None = None,
        beta_max: float = math.inf,
        y_max: float = math.inf,
        sufficient_decrease: float | None = None,
        coupling: str = "all",
        updates: str | int | None = None,
        total_steps: int | None = None,
        prox: Mapping[Tensor, Proximable] | None = None,
        owns: Sequence[str] | None = None,
        on_nonfinite: str = "raise",
        check_finite: str = "auto",
        warm_up: int = 0,
        process_group: Any = None,
        margin: Margins = 0.0,
        held_out: MarginSource | None = None,
    ) -> None:
        super().__init__(base)
        self.constraints, automatic = constraints, beta_1 is None
        sigma_1 = (1.0 if automatic else 10.0) if sigma_1 is None else sigma_1
        self.dual = DualState(
            nu=nu,
            beta_1=largest_penalty(beta_1),
            omega=omega,
            sigma=sigma,
            sigma_1=sigma_1,
            beta_max=beta_max,
            y_max=y_max,
            sufficient_decrease=sufficient_decrease,
        )
        # Fabric and Lightning copy the attributes, so whatever changes is inside these objects.
        searching, is_sgd = isinstance(base, LBFGS), isinstance(base, SGD)
        updates = ("auto" if automatic else "epoch") if updates is None else updates
        self.schedule = UpdateSchedule(updates, total_steps, searching)
        steps = self.schedule.measuring_steps if automatic else 0
        self.units = AutomaticUnits(steps, sigma_1, is_sgd, remeasures=not searching)
        self.estimate = RunningEstimate(automatic and not searching)
        self.epoch, self.ranks = EpochStatistics(warm_up=warm_up), Ranks(process_group)
        self.blocks = BlockVector(
            *(base, constraints, owns, coupling, bool(prox), penalty_factors(beta_1, nu)),
            Margin(margin, held_out, constraints),
            check_finite,
        )
        parts = self.blocks, self.dual, self.units, self.estimate, self.epoch, self.schedule
        self.gradient = AugmentedGradient(*parts, self.ranks, on_nonfinite)
        watch_backward(self.gradient)
        self.prox, self.monitor = ProxTerms(prox or {}, base), Monitor(self)

    def augment(
        self,
        loss: Tensor,
        /,
        *,
        strict: Mapping[str, BatchValue] | None = None,
        samples: float = 1.0,
        window: Sequence[Mapping[str, BatchValue | ProxyValue]] | None = None,
        **values: BatchValue | ProxyValue,
    ) -> Tensor:
        """Return the loss with the gradient of the batch blocks added; its value is unchanged.

        Args:
            loss: the scalar loss of this batch.
            strict: true values of blocks whose `values` are differentiable proxies: multipliers
                and reports use them, gradients do not.
            samples: weight of this batch in the epoch's averages.
            window: the values of all micro-batches of this step, which makes gradient accumulation
                exact; divide the result by their number, like a plain loss.
            **values: for every batch block a tensor, (tensor, count) or additive statistics, or a
                ProxyValue of two of them.
        """
        blocks = self.blocks.ready()
        if blocks.indexed:
            loss = self.gradient.indexed.augmented(loss, values, self.gradient)
        batch = read_batch(blocks.batch, values, strict, samples, window, blocks.deferred)
        self.monitor.signals.after_augment()
        return self.gradient.augmented(loss, batch)

    @torch.no_grad()
    def backward_constraints(self) -> None:
        """Add the gradient of the parameter-only blocks to .grad now, to clip the total gradient.

        Call it after backward and `scaler.unscale_`; the next step() does not add it again.
        """
        blocks, window = self.blocks.ready(), self.gradient.window
        window.notice_cleared(blocks.params, blocks.sharded)
        self.gradient.inject(window.sums(blocks.batch)[0])

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Add the gradient of the parameter-only blocks, step the base, apply the prox terms.

        A closure must call backward on the (augmented) loss and return it. A base that may call it
        several times (LBFGS) sees the value of L_β; step returns the closure's own first value.
        """
        if is_observed(self) and not self._in_hooks:
            return self._step_in_hooks(closure, **kwargs)
        if self._managed is None and not torch.compiler.is_compiling():
            self._look_for_callback()
        loss = None
        if closure is not None:
            if searches(self.base):
                found = search(self.base, self.gradient, self.epoch, closure, **kwargs)
                return self._skip() if found is None else self._finish(*found)
            with torch.enable_grad():
                loss = closure()
            if loss is None and all(p.grad is None for p in self.params):
                return None  # Lightning's training_step skipped this batch
        elif not self.epoch.total_steps and not self.base.state and initializes_state(self.base):
            return self.base.step(**kwargs)
        blocks, gradient = self.blocks.ready(), self.gradient
        proxy, reported = gradient.window.sums(blocks.batch)
        if not gradient.window.finite:
            return self._skip()
        sums, injected = blocks.epoch_sums_with(reported), gradient.inject(proxy)
        if gradient.measures_alone():
            return gradient.clear()
        if not injected or not self.epoch.follow(gradient.measure(self.units)):
            return self._skip()
        device = gradient.device
        ok = None if device is None else device.guard.keep(self.base, blocks.params, self.prox)
        if self.estimate.on:
            self.estimate.follow(blocks.batch, gradient.per_call(proxy), ok)
        blocks.margin.follow(proxy, reported)
        if blocks.indexed:
            gradient.indexed.follow(ok)
        result = step_base(self.base, **kwargs)
        return self._finish(result if closure is None else loss, sums)

    # Keeps torch from wrapping every step in a profiler range; `_step_in_hooks` does so if needed.
    step.hooked = True  # type: ignore[attr-defined]

    def _finish(self, result: Any, sums: Tallies) -> Any:
        """Apply the prox terms, do the bookkeeping of a step, and return its result."""
        if self.prox:
            self.prox.apply()
        if (device := self.gradient.device) is not None:
            sums = device.finish(self.base, sums, self.constraints.epoch_sums(sums))
        self.constraints.record_step(sums)
        self.epoch.count_step(self.gradient.window.parts)
        self.monitor.signals.after_step(bool(self._managed))
        self.gradient.clear()
        waiting = self.units.measuring or self.epoch.warming
        if not waiting and self.schedule.is_due(self.epoch.steps, self.epoch.total_steps):
            self.update_multipliers()
        elif device is not None and not waiting and not self.dual.started:
            device.read_units()
        return result

    def _skip(self) -> None:
        self.epoch.count_skipped()
        self.gradient.clear()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and forget the batches they came from."""
        super().zero_grad(set_to_none)
        self.gradient.forget_done()

    def with_base(self, base: Optimizer) -> "PowerALMOptimizer":
        """Continue with another base and all state; only the returned optimizer may step."""
        return hand_over(self, base)
