"""Handing the constraints of one optimizer over to another base."""

import copy
from typing import TYPE_CHECKING

import torch
from torch.optim import Optimizer

from torch_powalm.training.augmented_gradient import AugmentedGradient
from torch_powalm.training.distributed.backward_hook import watch_backward
from torch_powalm.training.monitor import Monitor
from torch_powalm.training.prox_terms import ProxTerms

if TYPE_CHECKING:
    from torch_powalm.training.optimizer import PowerALMOptimizer


def hand_over(old: "PowerALMOptimizer", base: Optimizer) -> "PowerALMOptimizer":
    """Return an optimizer that continues with another base; the old one raises from now on."""
    if old.ranks.size > 1:
        old.ranks.agreement.begin_comparison(old.blocks.device)
    if old.gradient.device is not None:
        old.gradient.device.read()
    new = copy.copy(old)  # shares the multipliers, the units and the counters
    new.set_base(base)
    new.prox = ProxTerms(dict(old.prox), base)
    searching = isinstance(base, torch.optim.LBFGS)
    new.schedule.set_searches(searching)
    sgd = isinstance(base, torch.optim.SGD)
    new.units.set_base(new.schedule.measuring_steps, sgd, remeasures=not searching)
    new.estimate.turn(new.units.steps > 0 and not searching)
    new.blocks = old.blocks.hand_over(base)
    new.units.defer(new.blocks.deferred)
    if new.dual.started and new.dual.y.device != new.blocks.host:
        state = {**new.dual.state_dict(), "y": new.dual.y.to(new.blocks.host)}
        new.dual.take_over(new.units.restored_dual(new.dual, state, new.blocks))
    parts = new.blocks, new.dual, new.units, new.estimate, new.epoch, new.schedule
    new.gradient = AugmentedGradient(*parts, new.ranks, old.gradient.finite.on_nonfinite)
    watch_backward(new.gradient)
    new.monitor = Monitor(new)
    new.monitor.history = old.monitor.history
    return new
