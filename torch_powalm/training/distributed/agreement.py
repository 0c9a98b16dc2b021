"""Agreement: ranks that train one model together must do the same things in the same order.

When a rank first uses the optimizer, all ranks compare a signature of their blocks and settings in
one small collective. From then on, each collective of ours starts with a header: what this rank is
doing, and how often it has done so. Ranks that do different things find that out at once and raise
on all of them, instead of waiting for each other or adding numbers that do not belong together.

The collectives use a process group of their own, so that they never meet those of DDP. A rank that
leaves out `augment` would only meet the others in the backward pass, where it waits for them while
they wait for it; so a hook on one parameter joins them from there.
"""

import hashlib
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torch_powalm.training.block import Tally
from torch_powalm.training.distributed.waiting_for_ranks import deadline, numbered, wait_for_all

Tallies = Mapping[str, Tally]
Description = dict[str, str]

_WORDS = 8  # numbers of a digest
_MODULUS = 64  # of counters in a header: their squares stay exact in float32 over 4,000 ranks
_DOING = (
    *("backward", "augment()", "update_multipliers()", "augment() with other values", "forward"),
    *("augment() with an index", "check_ranks(), with_base() or a first step", "step()"),
)
_HEADER = 6  # numbers: what is done, how often, after how many steps, and their squares
_WATCHED = 5  # first backward passes in which the ranks meet


class Agreement:
    """What the ranks of one optimizer have agreed on.

    Args:
        group: the ranks whose gradients are averaged; None for the default group.
    """

    def __init__(self, group: Any) -> None:
        self._base = group
        self._group: Any = None
        self._layout: list[str] | None = None  # of the sums of a batch, as agreed
        self._size, self._dtype = 0, torch.float32  # of the buffer of these sums
        self._counts = [0] * len(_DOING)  # by what was done
        self._met = False  # in this step, in a forward or backward pass
        self._steps = 0  # done, or skipped

    def meet(
        self, describe: Callable[[], Description], device: torch.device, sharded: bool
    ) -> None:
        """Compare the signatures of all ranks at the first use of the optimizer."""
        if self._group is not None:
            return
        ranks = dist.get_process_group_ranks(self._base or dist.group.WORLD)
        mine = describe()
        wait_for_all(ranks)
        self._group = dist.new_group(
            ranks,
            backend=dist.get_backend(self._base),
            use_local_synchronization=True,
            # A sharded forward pass has just synchronized the ranks: nobody is late.
            timeout=timedelta(seconds=deadline()) if sharded else None,
        )
        self._compare(mine, device)

    def _compare(self, mine: Description, device: torch.device) -> None:
        """Raise on all ranks if the descriptions differ."""
        if self._all_equal(_digest(mine), device):
            return
        everyone: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(everyone, mine, group=self._group)
        self._raise(everyone)

    def _raise(self, everyone: list[Description]) -> None:
        """Raise with the first entry in which the ranks differ."""
        names = dict.fromkeys(name for description in everyone for name in description)
        for name in names:
            values = [description.get(name, "none") for description in everyone]
            if len(set(values)) > 1:
                found = {v: [i for i, w in enumerate(values) if w == v] for v in values}
                got = " and ".join(f"{v} on {numbered(where)}" for v, where in found.items())
                raise RuntimeError(f"{name} must be the same on all ranks, got {got}")

    def _all_equal(self, numbers: Tensor, device: torch.device) -> bool:
        both = torch.cat([numbers, -numbers]).to(device)
        dist.all_reduce(both, op=dist.ReduceOp.MAX, group=self._group)
        highest, lowest = both.cpu().chunk(2)
        return bool((highest == -lowest).all())

    def begin_augment(self, parts: list[Tallies], device: torch.device) -> tuple[Tensor, Any]:
        """Return the header of a sum over ranks and its group; ranks must sum the same things."""
        layout = [
            f"{_entries(t.total)}{'' if isinstance(t.weight, float) else ' and counts'} of {name!r}"
            for part in parts
            for name, t in part.items()
        ]
        if layout != self._layout:
            if self._layout is not None:  # not as agreed: tell the others, who expect the old one
                self._join(3, device, "; ".join(layout))
            self._compare({"the batch of augment()": "; ".join(layout)}, device)
            totals = [t.total for part in parts for t in part.values()]
            weights = [
                1 if isinstance(t.weight, float) else len(t.weight)
                for p in parts
                for t in p.values()
            ]
            self._layout, self._dtype = layout, _common_dtype(totals)
            self._size = sum(map(len, totals)) + sum(weights)
        return self._header(1, device), self._group

    def _header(self, doing: int, device: torch.device) -> Tensor:
        self._counts[doing] += 1
        numbers = doing, self._counts[doing] % _MODULUS, self._steps % _MODULUS
        return torch.tensor([*numbers, *(n * n for n in numbers)], dtype=self._dtype, device=device)

    def check_header(self, summed: Tensor, doing: int, what: str = "") -> None:
        """Raise on all ranks if they did not all do this for the same time."""
        size = dist.get_world_size(self._group)
        sums = [round(x) for x in summed.tolist()]
        # Numbers are equal if the sum of their squares is that of their mean.
        if all(size * b == a * a for a, b in zip(sums[:3], sums[3:], strict=True)):
            return
        everyone: list[Any] = [None] * size
        dist.all_gather_object(everyone, self._doing(doing, what), group=self._group)
        self._raise(everyone)

    def _doing(self, doing: int, what: str = "") -> Description:
        mine = f"{_DOING[doing]} {what}".strip()
        mine += f" for the {_ordinal(self._counts[doing])} time"
        return {"what a rank does": mine, "the number of steps": repr(self._steps)}

    def _join(self, doing: int, device: torch.device, what: str = "") -> None:
        """Take part in a collective of the other ranks, and raise if they do something else."""
        if self._layout is None:  # no batch so far
            self._counts[doing] += 1
            return self._compare(self._doing(doing), device)
        buffer = torch.cat(
            [self._header(doing, device), torch.zeros(self._size, dtype=self._dtype, device=device)]
        )
        all_reduce(buffer, self._group)
        self.check_header(buffer[:_HEADER], doing, what)

    def begin_indexed(self, device: torch.device) -> Any:
        """Check that all ranks now exchange the entries of indexed blocks; return their group."""
        self._join(5, device)
        return self._group

    def begin_comparison(self, device: torch.device, update: bool = False) -> None:
        """Check that all ranks make an update, or else compare something, if they have met."""
        if self._group is not None:
            self._join(2 if update else 6, device)

    def compare(
        self, described: Description, norms: Mapping[str, float], device: torch.device
    ) -> None:
        """Raise on all ranks if descriptions differ, or norms by more than rounding."""
        words = _digest(described).to(torch.float64)
        mine = torch.cat([words, torch.tensor(list(norms.values()), dtype=torch.float64)])
        both = torch.cat([mine, -mine]).nan_to_num().to(device)
        dist.all_reduce(both, op=dist.ReduceOp.MAX, group=self._group)
        highest, lowest = both.cpu().chunk(2)
        gaps = highest + lowest
        if bool(gaps[: len(words)].any()):
            everyone: list[Any] = [None] * dist.get_world_size(self._group)
            dist.all_gather_object(everyone, described, group=self._group)
            self._raise(everyone)
        differs = gaps > 1e-5 * highest.abs().clamp(min=1)
        for name, different in zip(norms, differs[len(words) :].tolist(), strict=True):
            if different:
                raise RuntimeError(
                    f"{name} must be the same on every rank, got {norms[name]!r} as its norm here; "
                    "use the same parameters and states and no random numbers on all ranks"
                )

    def in_forward(self, device: torch.device) -> None:
        """Check before a forward pass of shards, which is a collective, that all ranks begin it."""
        if self._group is not None:
            self._met = True
            self._join(4, device)

    def in_step(self, device: torch.device) -> None:
        """Check before a step gathers shards that all ranks begin it."""
        if self._group is not None and not torch.compiler.is_compiling():
            self._join(7, device)

    def in_backward(self, device: torch.device, augmented: bool | None) -> None:
        """Check that all ranks do the same in the first backward passes and any without `augment`.

        Without batch blocks, `augmented` is None: then ranks meet in one pass of every step.
        """
        if augmented is None:
            if self._met:
                return
            self._met = True
        if not augmented or self._counts[0] < _WATCHED:
            self._join(0, device)

    def end_step(self) -> None:
        """Count a step, and meet again in the next one."""
        self._met, self._steps = False, self._steps + 1


def all_reduce(buffer: Tensor, group: Any) -> None:
    """Add a buffer over all ranks."""
    try:
        dist.all_reduce(buffer, group=group)
    except RuntimeError as error:
        raise RuntimeError(
            "all ranks must call augment() and update_multipliers() equally often, got no answer "
            f"from another rank: {error}"
        ) from error


def _digest(description: Description) -> Tensor:
    """Return numbers that are different for different descriptions."""
    content = "\n".join(f"{name}: {value}" for name, value in description.items())
    found = hashlib.sha256(content.encode()).digest()
    words = [int.from_bytes(found[i : i + 3], "big") for i in range(0, 3 * _WORDS, 3)]
    return torch.tensor(words, dtype=torch.float32)  # exact, as 24 bits


def _entries(tensor: Tensor) -> str:
    return f"{len(tensor)} numbers of {str(tensor.dtype).removeprefix('torch.')}"


def _common_dtype(tensors: list[Tensor]) -> torch.dtype:
    return torch.float64 if any(t.dtype is torch.float64 for t in tensors) else torch.float32


def _ordinal(n: int) -> str:
    ending = "th" if 10 <= n % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"
