"""RunningEstimate: batch blocks averaged over the last batches.

The penalty of a noisy value is biased: an inequality that holds on average is violated in every
other batch. So the weight of a batch block comes from a running average of its sums, and only its
gradient from the batch alone. The gain α of the average follows the block's own noise (Trigg and
Leach 1967): with the error e of the average as a prediction of the next batch,

    E ← (1 − a)E + a e,     M ← (1 − a)M + a‖e‖,     α = max(‖E‖/M, α_min)

Errors of one direction mean that the block moves, and α rises to 1; errors that cancel are noise.
A group that is absent in a batch adds nothing to the sums, so that its last average stays.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_powalm.checks.state_checks import check_list, check_tensor
from torch_powalm.training.batch_window import Tallies
from torch_powalm.training.block import Block, Tally, checked_tally

SMOOTHING = 0.1  # a
GAIN_MIN = 0.05  # α_min
POOLED_GAIN = 0.5  # largest gain of statistics


class Track(NamedTuple):
    """Running average of one block, and what its gain is computed from."""

    tally: Tally
    error: Tensor  # E
    spread: Tensor  # M
    gain: Tensor  # α

    def to(self, device: torch.device) -> "Track":
        """Return the same average on a device."""
        return Track(self.tally.to(device), *(t.to(device) for t in self[1:]))

    def like(self, new: Tally) -> "Track":
        """Return the same average in the precision of a new batch: a load may have changed it."""
        if self.tally.total.dtype is new.total.dtype is self.error.dtype is self.spread.dtype:
            return self
        total, weight = self.tally
        weight = weight.to(new.total) if isinstance(weight, Tensor) else weight
        rest = (t.to(new.total) for t in self[1:])
        return Track(Tally(total.to(new.total), weight), *rest)


class RunningEstimate:
    """Running averages of the batch blocks of one optimizer.

    Args:
        on: whether to average; if not, a batch stands for itself.
    """

    def __init__(self, on: bool) -> None:
        self.on = on
        self.tracks: dict[str, Track] = {}

    def blend(self, batch: Tallies) -> Tallies:
        """Return the average as it will be after this batch."""
        return {
            name: _mix((track := self.tracks[name].like(t)).tally, t, track.gain)
            if name in self.tracks
            else t
            for name, t in batch.items()
        }

    @torch.no_grad()
    def follow(self, blocks: list[Block], batch: Tallies, ok: Tensor | None = None) -> None:
        """Move the averages by the batch of a step, unless `ok` is false on the device."""
        for block in blocks:
            if block.latest:
                continue
            new = batch[block.name]
            track = self.tracks.get(block.name)
            if track is None:
                error = torch.zeros_like(new.value(block))
                gain = error.new_full((), _largest_gain(block))
                start = Track(new.snapshot(), error, 0 * gain, gain)
                self.tracks[block.name] = start if ok is None else _empty_unless(ok, start)
                continue
            track = track.like(new)
            both = new.present(block) & track.tally.present(block)
            e = torch.where(both, new.value(block) - track.tally.value(block), 0.0)
            size = torch.linalg.vector_norm(e)
            first = track.spread == 0
            error = torch.where(first, e, torch.lerp(track.error, e, SMOOTHING))
            spread = torch.where(first, size, torch.lerp(track.spread, size, SMOOTHING))
            gain = torch.linalg.vector_norm(error) / spread.clamp(min=torch.finfo(e.dtype).tiny)
            gain = torch.where(spread > 0, gain, 1.0).clamp(GAIN_MIN, _largest_gain(block))
            mixed = _mix(track.tally, new, track.gain)
            moved = Track(mixed, error, spread, gain)
            self.tracks[block.name] = moved if ok is None else _chosen(ok, moved, track)

    def turn(self, on: bool) -> None:
        """Turn averages on or off; off forgets them."""
        self.on = on
        self.tracks = self.tracks if on else {}

    def restore(self, tracks: Mapping[str, Track]) -> None:
        """Continue from saved averages."""
        self.tracks = dict(tracks)

    def state_dict(self) -> dict[str, Any]:
        """Return the averages."""
        return {name: (*t.tally, t.error, t.spread, t.gain) for name, t in self.tracks.items()}


def checked_track(value: Any, where: str, block: Block) -> Track:
    """Return a saved average of one block; raise if it cannot be one."""
    items = check_list(value, where, lambda item, place: item, 5)
    tally = checked_tally(items[:2], where, block)
    error = check_tensor(items[2], f"{where}[2]", shapes=[(block.size or 0,)])
    spread = check_tensor(items[3], f"{where}[3]", shapes=[()], low=0.0)
    gain = check_tensor(items[4], f"{where}[4]", shapes=[()], low=GAIN_MIN * (1 - 1e-6))
    empty = not bool(torch.as_tensor(tally.weight).any())
    largest = 1.0 if empty else _largest_gain(block)
    if float(gain) > largest:
        raise ValueError(f"{where}[4] must be at most {largest!r}, got {float(gain)!r}")
    return Track(tally, error, spread, gain)


def _largest_gain(block: Block) -> float:
    """Return the largest gain: a batch that lacks a group must not stand for the average."""
    return 1.0 if block.from_statistics is None else POOLED_GAIN


def _chosen(ok: Tensor, new: Track, old: Track) -> Track:
    """Return the new track where `ok` is true on the device, else the old one."""
    weight = new.tally.weight
    if isinstance(weight, Tensor):
        weight = torch.where(ok, weight, old.tally.weight)
    total = torch.where(ok, new.tally.total, old.tally.total)
    rest = [torch.where(ok, now, before) for now, before in zip(new[1:], old[1:], strict=True)]
    return Track(Tally(total, weight), *rest)


def _empty_unless(ok: Tensor, first: Track) -> Track:
    """Return a first track; where `ok` is false on the device, the next batch replaces it."""
    tally, total = first.tally, first.tally.total
    weight = tally.weight if isinstance(tally.weight, Tensor) else total.new_full((), tally.weight)
    sums = Tally(torch.where(ok, total, 0.0), torch.where(ok, weight, 0.0))
    return first._replace(tally=sums, gain=torch.where(ok, first.gain, 1.0))


def _mix(old: Tally, new: Tally, gain: Tensor) -> Tally:
    """Return the average moved toward a new tally."""
    old.check_size(new)
    total = torch.lerp(old.total, new.total.detach(), gain.to(old.total))
    if isinstance(old.weight, float) and isinstance(new.weight, float) and old.weight == new.weight:
        return Tally(total, old.weight)
    before, now = (
        w.to(total) if isinstance(w, Tensor) else total.new_full((), w)
        for w in (old.weight, new.weight)
    )
    gain = torch.where(now > 0, gain.to(total), 0.0)  # an absent entry keeps its average
    return Tally(torch.lerp(old.total, new.total.detach(), gain), torch.lerp(before, now, gain))
