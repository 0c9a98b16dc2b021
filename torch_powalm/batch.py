"""What a batch says about its constraints, and the window of such calls until the next step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_powalm.constraints import Block, Tally

BatchValue = Tensor | tuple[Tensor, Tensor]
Tallies = dict[str, Tally]


def tallies(
    blocks: Sequence[Block], values: Mapping[str, BatchValue], samples: float, caller: str
) -> Tallies:
    """Read the values of all batch blocks; a missing or unknown name raises."""
    unknown = values.keys() - {block.name for block in blocks}
    if unknown:
        raise KeyError(f"{caller} has no batch constraint {min(unknown)!r}")
    for block in blocks:
        if block.name not in values:
            raise KeyError(f"{caller} must have a value of {block.name!r}, got none")
    return {block.name: _tally(block, values[block.name], samples) for block in blocks}


def completed(part: Tallies, window: Sequence[Tallies]) -> Tallies:
    """The sums of a whole window, with the graph of the part of it that is at hand."""
    whole = total(window)
    return {
        name: Tally(t.total + (whole[name].total - t.total).detach(), whole[name].weight)
        for name, t in part.items()
    }


def total(window: Sequence[Tallies]) -> Tallies:
    """The sums of several calls added up."""
    whole = dict(window[0])
    for part in window[1:]:
        whole = {name: t.plus(part[name]) for name, t in whole.items()}
    return whole


@dataclass
class _Call:
    proxy: Tallies
    reported: Tallies
    done: bool = False  # backward has passed through the augmented loss


class Window:
    """The calls of augment() since the last step.

    A call counts once backward has passed through it: discarded forwards never do, and clearing
    gradients between forward and backward (as Lightning does) keeps it.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []

    def add(self, surrogate: Tensor, proxy: Tallies, reported: Tallies) -> None:
        """Remember a call until its surrogate has been differentiated and stepped with."""
        call = _Call({name: t.detached() for name, t in proxy.items()}, reported)
        self._calls.append(call)

        def mark(_: Tensor) -> None:
            call.done = True

        surrogate.register_hook(mark)  # type: ignore[no-untyped-call]

    def forget_done(self) -> None:
        """Drop the calls whose gradients are being cleared."""
        self._calls = [call for call in self._calls if not call.done]

    def clear(self) -> None:
        """Drop all calls."""
        self._calls = []

    def proxy(self, blocks: Sequence[Block]) -> Tallies:
        """Sums that the gradients in .grad belong to."""
        return total(self._done(blocks)[0])

    def reported(self, blocks: Sequence[Block]) -> Tallies:
        """Sums of the true values, for multipliers and reports."""
        return total(self._done(blocks)[1])

    def _done(self, blocks: Sequence[Block]) -> tuple[list[Tallies], list[Tallies]]:
        done = [call for call in self._calls if call.done]
        if not done:
            names = ", ".join(repr(block.name) for block in blocks)
            raise RuntimeError(
                f"step needs the batch constraints {names}; "
                "call augment() and backward() on its result before"
            )
        return [call.proxy for call in done], [call.reported for call in done]


def _tally(block: Block, value: BatchValue, samples: float) -> Tally:
    """A value, (value, count), or statistics."""
    if block.from_statistics is not None:
        return Tally(block.flat(value, None, "'s statistics"), 1.0)
    if not isinstance(value, tuple):
        total = block.flat(value, block.size)
        return Tally(total if samples == 1.0 else total * samples, samples)
    if len(value) != 2:
        raise ValueError(
            f"constraint {block.name!r} must be a value or (value, count), got {len(value)} items"
        )
    total = block.flat(value[0], block.size)
    count = torch.as_tensor(value[1], dtype=total.dtype, device=total.device).detach().reshape(-1)
    if len(count) != len(total):
        raise ValueError(
            f"count of {block.name!r} must have {len(total)} entries, got {len(count)}"
        )
    if not bool(((count >= 0) & count.isfinite()).all()):
        raise ValueError(
            f"count of {block.name!r} must be nonnegative and finite, got {count.tolist()}"
        )
    return Tally(torch.where(count > 0, total, 0.0) * count, count)
