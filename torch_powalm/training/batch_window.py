"""Constraint values of a batch, and the window of `augment` calls since the last step."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torch_powalm.training.augmented_loss import newly_met, still_waiting
from torch_powalm.training.block import BatchValue, Block, Tally, check_samples, tally
from torch_powalm.training.proxy_value import ProxyValue

Tallies = dict[str, Tally]


class BatchValues(NamedTuple):
    """Sums of one call of `augment`; fields with equal values are the same object.

    Args:
        proxy: the values that carry a graph.
        reported: the values that multipliers and reports use.
        whole: the values of all micro-batches of the step.
        parts: number of micro-batches over which the loss of the step is averaged.
    """

    proxy: Tallies
    reported: Tallies
    whole: Tallies
    parts: int


def read_batch(
    blocks: Sequence[Block],
    values: Mapping[str, BatchValue | ProxyValue],
    strict: Mapping[str, BatchValue] | None,
    samples: float,
    window: Sequence[Mapping[str, BatchValue | ProxyValue]] | None,
    deferred: bool = False,
) -> BatchValues:
    """Check the arguments of `augment` and turn them into sums.

    If `deferred`, numbers on the device are not checked, but turned into nan where they are wrong.
    """
    if samples != 1.0:
        check_samples(samples)
    for name, value in values.items():
        if isinstance(value, ProxyValue):
            if strict and name in strict:
                raise ValueError(f"strict of {name!r} must not be given twice, got a ProxyValue")
            strict = {**(strict or {}), name: value.strict}
    proxy = tallies(blocks, values, samples, "augment", deferred)
    reported = proxy
    if strict:
        for name in strict:
            if name not in values:
                raise KeyError(f"strict has no batch constraint {name!r}{_hint(name, values)}")
        reported = tallies(blocks, {**values, **strict}, samples, "strict", deferred)
    if window is None:
        return BatchValues(proxy, reported, proxy, 1)
    if samples != 1.0:
        raise ValueError(f"samples must be 1 with window (use (value, count)), got {samples!r}")
    if not window:
        raise ValueError("window must have at least one micro-batch, got none")
    parts = [tallies(blocks, part, samples, "window", deferred) for part in window]
    return BatchValues(proxy, reported, total(parts), len(parts))


def tallies(
    blocks: Sequence[Block],
    values: Mapping[str, BatchValue | ProxyValue],
    samples: float,
    caller: str,
    deferred: bool = False,
) -> Tallies:
    """Read the values of all batch blocks; a missing or unknown name raises."""
    found = {}
    for block in blocks:
        if block.name in values:
            value = values[block.name]
            found[block.name] = tally(
                block, value.proxy if isinstance(value, ProxyValue) else value, samples, deferred
            )
    if len(values) > len(found):
        unknown = min(values.keys() - found)
        hint = _hint(unknown, [block.name for block in blocks])
        raise KeyError(f"{caller} has no batch constraint {unknown!r}{hint}")
    for block in blocks:
        if block.name not in found:
            raise KeyError(f"{caller} must have a value for {block.name!r}, got none")
    return found


def _hint(name: str, known: Iterable[str]) -> str:
    """Suggest the known name nearest to a misspelled one."""
    nearest = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


def with_graph_of(part: Tallies, whole: Tallies) -> Tallies:
    """Return the sums of the whole, bit for bit, with the autograd graph of the part."""
    return {
        name: Tally(
            whole[name].total.detach() + (t.total - t.total.detach()).to(whole[name].total.device),
            whole[name].weight,
        )
        for name, t in part.items()
    }


def total(window: Sequence[Tallies]) -> Tallies:
    """Add the sums of several calls."""
    whole = dict(window[0])
    for part in window[1:]:
        whole = {name: t.plus(part[name]) for name, t in whole.items()}
    return whole


@dataclass
class Call:
    """Values of one call of `augment`: those its gradients come from, and those to report."""

    proxy: Tallies
    reported: Tallies
    done: bool = False  # backward has passed through the augmented loss
    assumed: bool = False  # made in a compiled graph, which does not see backward
    met: bool = False  # this backward pass has reached the parameters
    finite: bool = True  # all values and statistics of the call
    loss: Tensor | None = None  # without a graph


class BatchWindow:
    """Tracks which constraint terms are in .grad since the last step.

    A call of `augment` counts once backward has passed through it: discarded forward passes never
    count, and clearing gradients between forward and backward (as Lightning does) keeps the call.
    """

    def __init__(self) -> None:
        self._calls: list[Call] = []
        # A .grad that already includes the gradient of the parameter-only blocks.
        self._injected: Tensor | None = None

    def add(self, proxy: Tallies, reported: Tallies, loss: Tensor | None = None) -> Call:
        """Remember a call until the next step."""
        seen = {name: t.snapshot() for name, t in proxy.items()}
        true = seen if reported is proxy else {n: t.snapshot() for n, t in reported.items()}
        self._calls.append(Call(seen, true, loss=None if loss is None else loss.detach()))
        return self._calls[-1]

    def meets_backward(self) -> bool:
        """Whether the backward pass that now reaches the parameters is one of a call."""
        return newly_met(self._calls)

    @property
    def finite(self) -> bool:
        """Whether all values whose gradients are in .grad are finite."""
        return all(call.finite for call in self._calls if call.done)

    @property
    def loss_finite(self) -> bool:
        """Whether the losses whose gradients are in .grad are finite; reads them."""
        losses = [call.loss for call in self._calls if call.done and call.loss is not None]
        return all(bool(loss.isfinite()) for loss in losses)

    def mark_injected(self, grad: Tensor | None) -> None:
        """Record that this .grad, and so every .grad, includes the parameter-only blocks."""
        self._injected = grad

    @property
    def is_injected(self) -> bool:
        """Whether .grad includes the gradient of the parameter-only blocks."""
        return self._injected is not None

    def notice_cleared(self, params: Sequence[Tensor], sharded: bool) -> None:
        """Forget past calls if `model.zero_grad()` has cleared their gradients.

        FSDP2 stores unsynchronized gradients elsewhere while accumulating, so a sharded parameter
        without .grad does not show that the gradients were cleared.
        """
        if self._injected is not None and all(p.grad is not self._injected for p in params):
            self._injected = None
        waiting = bool(self._calls) and any(call.done for call in self._calls)
        if waiting and not sharded and all(p.grad is None for p in params):
            self.forget_done()

    def forget_done(self) -> None:
        """Forget the calls whose gradients were in .grad; keep those still waiting for backward."""
        self._calls, self._injected = still_waiting(self._calls), None

    def clear(self) -> None:
        """Forget everything after a step."""
        self._calls, self._injected = [], None

    def sums(self, blocks: Sequence[Block]) -> tuple[Tallies, Tallies]:
        """Return the sums that the gradients in .grad come from, and the sums to report."""
        if not blocks:
            return {}, {}
        done = [call for call in self._calls if call.done]
        if not done:
            names = ", ".join(repr(block.name) for block in blocks)
            raise RuntimeError(
                f"step needs the batch constraints {names}; "
                "call augment() first, and backward() on its result"
            )
        proxy = total([call.proxy for call in done])
        if all(call.reported is call.proxy for call in done):
            return proxy, proxy
        return proxy, total([call.reported for call in done])

    @property
    def parts(self) -> int:
        """Number of calls whose gradients are in .grad."""
        return sum(call.done for call in self._calls)

    @property
    def waiting(self) -> int:
        """Number of calls whose result backward has not passed through."""
        return sum(not call.done for call in self._calls)


def carries_gradient(loss: Tensor, values: Mapping[str, Tensor]) -> bool:
    """Whether the augmented loss will be trained on; in validation it is not."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(f"loss must be a scalar tensor, got {got}")
    if not torch.is_grad_enabled():
        return False
    with_graph = [value.requires_grad for value in values.values()]
    if not (loss.requires_grad or any(with_graph)):
        return False
    if not all(with_graph):
        name = list(values)[with_graph.index(False)]
        raise ValueError(f"constraint {name!r} must have a gradient, got a constant")
    return True
