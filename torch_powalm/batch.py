"""What a batch says about its constraints, and the window of such calls until the next step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_powalm.blocks import BatchValue, Block, Tally, check_samples, tally

Tallies = dict[str, Tally]


def read(
    blocks: Sequence[Block],
    values: Mapping[str, BatchValue],
    strict: Mapping[str, BatchValue] | None,
    samples: float,
    window: Sequence[Mapping[str, BatchValue]] | None,
) -> tuple[Tallies, Tallies, Tallies, int]:
    """The sums of a call of augment(), and over how many parts the step's loss is a mean.

    Sums with a graph, those to be reported, and those of all micro-batches of the step; they are
    the same object where nothing else has been given.
    """
    if samples != 1.0:
        check_samples(samples)
    proxy = tallies(blocks, values, samples, "augment")
    reported = proxy
    if strict:
        if strict.keys() - values.keys():
            raise KeyError(f"strict has no batch constraint {min(strict.keys() - values)!r}")
        reported = tallies(blocks, {**values, **strict}, samples, "strict")
    if window is None:
        return proxy, reported, proxy, 1
    if samples != 1.0:
        raise ValueError(f"samples must be 1 with window (use (value, count)), got {samples!r}")
    if not window:
        raise ValueError("window must have at least one micro-batch, got none")
    parts = [tallies(blocks, part, samples, "window") for part in window]
    return proxy, reported, total(parts), len(parts)


def tallies(
    blocks: Sequence[Block], values: Mapping[str, BatchValue], samples: float, caller: str
) -> Tallies:
    """Read the values of all batch blocks; a missing or unknown name raises."""
    found = {}
    for block in blocks:
        if block.name not in values:
            raise KeyError(f"{caller} must have a value of {block.name!r}, got none")
        found[block.name] = tally(block, values[block.name], samples)
    if len(values) > len(found):
        raise KeyError(f"{caller} has no batch constraint {min(values.keys() - found)!r}")
    return found


def completed(part: Tallies, whole: Tallies) -> Tallies:
    """The sums of the whole, to the last bit, with the graph of the part of it that is at hand."""
    return {
        name: Tally(
            whole[name].total.detach() + (t.total - t.total.detach()).to(whole[name].total.device),
            whole[name].weight,
        )
        for name, t in part.items()
    }


def total(window: Sequence[Tallies]) -> Tallies:
    """The sums of several calls added up."""
    whole = dict(window[0])
    for part in window[1:]:
        whole = {name: t.plus(part[name]) for name, t in whole.items()}
    return whole


@dataclass
class Call:
    """One call of augment(): what its gradients and what its reports are about."""

    proxy: Tallies
    reported: Tallies
    done: bool = False  # backward has passed through the augmented loss


class Augment(torch.autograd.Function):
    """The loss, with the gradient of loss + ⟨w, A⟩; backward marks the call as done."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, A: Tensor, w: Tensor, call: Call) -> Tensor:
        """Keep the value."""
        ctx.save_for_backward(w)
        ctx.call = call
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """One vector for each of the two."""
        ctx.call.done = True
        (w,) = ctx.saved_tensors
        return grad, grad.to(w.dtype) * w, None, None


class Window:
    """The calls of augment() since the last step.

    A call counts once backward has passed through it: discarded forwards never do, and clearing
    gradients between forward and backward (as Lightning does) keeps it.
    """

    def __init__(self) -> None:
        self._calls: list[Call] = []

    def add(self, proxy: Tallies, reported: Tallies) -> Call:
        """Remember a call until it has been stepped with."""
        seen = {name: t.snapshot() for name, t in proxy.items()}
        true = seen if reported is proxy else {n: t.snapshot() for n, t in reported.items()}
        self._calls.append(Call(seen, true))
        return self._calls[-1]

    @property
    def has_done(self) -> bool:
        """Whether gradients of a call wait for their step."""
        return bool(self._calls) and any(call.done for call in self._calls)

    def forget_done(self) -> None:
        """Drop the calls whose gradients are being cleared."""
        if self._calls:
            self._calls = [call for call in self._calls if not call.done]

    def clear(self) -> None:
        """Drop all calls."""
        self._calls = []

    def proxy(self, blocks: Sequence[Block]) -> Tallies:
        """Sums that the gradients in .grad belong to."""
        return total([call.proxy for call in self._done(blocks)])

    def reported(self, blocks: Sequence[Block]) -> Tallies:
        """Sums of the true values, for multipliers and reports."""
        return total([call.reported for call in self._done(blocks)])

    def _done(self, blocks: Sequence[Block]) -> list[Call]:
        done = [call for call in self._calls if call.done]
        if not done:
            names = ", ".join(repr(block.name) for block in blocks)
            raise RuntimeError(
                f"step needs the batch constraints {names}; "
                "call augment() and backward() on its result before"
            )
        return done
