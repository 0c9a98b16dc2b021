"""Special steps of the base: a search with a closure (LBFGS), or a step that creates state."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_powalm.training.augmented_gradient import AugmentedGradient
from torch_powalm.training.batch_window import Tallies
from torch_powalm.training.distributed.sharded_tensors import sharded_norm
from torch_powalm.training.epoch_statistics import EpochStatistics


def searches(base: Optimizer) -> bool:
    """Whether a step of the base may call its closure more than once."""
    from_torch = type(base).__module__.startswith("torch.") and "step" not in base.__dict__
    return isinstance(base, torch.optim.LBFGS) or not from_torch


def search(
    base: Optimizer,
    gradient: AugmentedGradient,
    epoch: EpochStatistics,
    closure: Callable[[], Any],
    **kwargs: Any,
) -> tuple[Any, Tallies] | None:
    """Step a base that may evaluate L_β at several points.

    Returns the closure's first value and the sums of the epoch including its batch, or None if a
    value was not finite. In the latter case the parameters are restored, and a base that had
    already started its search loses its state.
    """
    blocks = gradient.blocks.ready()
    first: list[tuple[Any, Tallies]] = []

    def augmented_closure() -> Any:
        with torch.enable_grad():
            loss = closure()
        proxy, reported = gradient.window.sums(blocks.batch)
        if not gradient.inject(proxy) or not epoch.follow(gradient.measure()):
            raise _NotFiniteError
        if not first:
            first.append((loss, blocks.epoch_sums_with(reported)))
        gradient.window.mark_injected(None)
        return loss if loss is None else loss + gradient.dual.value(gradient.residual(proxy)[1])

    params = blocks.params
    backup = [p.detach().clone() for p in params]
    try:
        base.step(augmented_closure, **kwargs)
    except (_NotFiniteError, FloatingPointError) as error:
        _restore(params, backup)
        if first:
            base.state.clear()
        if isinstance(error, FloatingPointError):
            raise
        return None
    return first[0] if first else (None, {})


class _NotFiniteError(Exception):
    """Aborts the step of the base if on_nonfinite is "skip"."""


@torch.no_grad()
def _restore(params: list[Tensor], backup: list[Tensor]) -> None:
    for p, old in zip(params, backup, strict=True):
        p.copy_(old)


def initializes_state(base: Optimizer) -> bool:
    """Whether this is the empty step that torch's distributed checkpoints use to create state."""
    if any(float(group.get("lr", 0.0)) != 0 for group in base.param_groups):
        return False
    grads = [p.grad for group in base.param_groups for p in group["params"] if p.requires_grad]
    return all(grad is not None for grad in grads) and sharded_norm(*grads) == 0
