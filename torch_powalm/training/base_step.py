"""Special steps of the base: a search with a closure (LBFGS), or a step that creates state."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_powalm.training.augmented_gradient import AugmentedGradient
from torch_powalm.training.automatic_units import AutomaticUnits
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

    Returns the closure's first value and the sums of the epoch including the batch blocks at the
    accepted point, or None if a value was not finite. In the latter case the parameters are
    restored, and a base that had already started its search loses its state; so does LBFGS whenever
    its step raises, since torch's own could not go on. The units are measured
    at the first point, and known from the next step on, so that L_β does not change in a search.
    """
    blocks, units = gradient.blocks.ready(), gradient.units
    if blocks.indexed:
        raise ValueError(
            f"indexed constraints need a base without a search, got {type(base).__name__}"
        )
    params, points = blocks.params, list[_Point]()
    measured: list[AutomaticUnits] = []

    def augmented_closure() -> Any:
        with torch.enable_grad():
            loss = closure()
        proxy, reported = gradient.window.sums(blocks.batch)
        known = gradient.window.finite and not _skips(loss, gradient.finite.on_nonfinite)
        injected = known and gradient.inject(proxy) and not gradient.measures_alone()
        if not injected:
            raise _NotFiniteError
        if units.measuring and not points:
            measured[:] = [units.restored(units.state_dict())]
        gradient_norm = gradient.measure(None if points or not measured else measured[0])
        if not epoch.follow(gradient_norm):
            raise _NotFiniteError
        points.append(_Point(loss, sharded_norm(*params), proxy, reported))
        gradient.window.mark_injected(None)
        return loss if loss is None else loss + gradient.dual.value(gradient.residual(proxy)[1])

    backup = [p.detach().clone() for p in params]
    try:
        base.step(augmented_closure, **kwargs)
    except BaseException as error:  # Ctrl-C included: half a search is no state to go on from
        not_finite = isinstance(error, _NotFiniteError | FloatingPointError)
        if not_finite or isinstance(base, torch.optim.LBFGS):
            _restore(params, backup)
            if points:
                base.state.clear()
        if not isinstance(error, _NotFiniteError):
            raise
        return None
    if measured:
        units.take_over(measured[0])
    if not points:
        return None, {}
    accepted = _accepted(points, sharded_norm(*params))
    if gradient.estimate.on:
        gradient.estimate.follow(blocks.batch, gradient.per_call(accepted.proxy))
    return points[0].loss, blocks.epoch_sums_with(accepted.reported)


def _skips(loss: Any, on_nonfinite: str) -> bool:
    """Return whether a loss is not finite and skipped: a line search with it is an IndexError."""
    value = loss.detach() if isinstance(loss, Tensor) else loss
    return on_nonfinite == "skip" and value is not None and not math.isfinite(value)


class _Point(NamedTuple):
    """One evaluation of the closure."""

    loss: Any
    x_norm: float
    proxy: Tallies
    reported: Tallies


def _accepted(points: list[_Point], x_norm: float) -> _Point:
    """Return the last point with this norm of the parameters, else the last point.

    A line search may accept a point that it evaluated earlier, and then restores its parameters.
    """
    return next((point for point in reversed(points) if point.x_norm == x_norm), points[-1])


class _NotFiniteError(Exception):
    """Aborts the step of the base: on_nonfinite is "skip", or .grad is a measurement."""


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
