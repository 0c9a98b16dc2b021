"""UnitMeasurements: what the units of constraints and loss are computed from.

For each block b, over the parameters x_b that it depends on:

    G_b = ‖∇loss‖          the pull of the loss
    J_b = ‖J_bᵀz‖/√m       what a move changes of the block's m entries; z has random signs
    d_b                    how far the parameters go in the first steps

All are measured in the first steps, G_b and J_b also in the step after each update.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_powalm.functional import norm
from torch_powalm.training.block_vector import BlockVector
from torch_powalm.training.distributed.reductions import Ranks
from torch_powalm.training.distributed.sharded_tensors import (
    is_sharded,
    norm_on_device,
    sharded_norm,
)
from torch_powalm.training.vector_jacobian import vjp

MEMORY = 5  # updates whose measurements count
SAMPLE = 1000  # about as many entries of a parameter are watched for moves


class UnitMeasurements:
    """Lengths by block, in the order in which they were measured.

    Args:
        steps: number of first steps that measure; 0 if nothing is measured.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.rate = self.peak = 0.0  # learning rate now, and the largest so far
        self.pull: list[float] = []  # ‖∇loss‖ over all parameters, at each of the first steps
        self.change: dict[str, list[float]] = {}  # J_b
        self.pulls: dict[str, list[float]] = {}  # G_b
        self.sizes: dict[str, list[float]] = {}  # ‖x_b‖
        self.moves: dict[str, float] = {}  # d_b
        self.rates: list[float] = []  # learning rate at each of the first steps
        self.at: list[Tensor] = []  # entries of the parameters at the first step, while measuring
        self.reached: dict[str, list[int]] = {}  # indices of x_b among the parameters
        # torch.compile and FSDP2 do not allow a second backward through a batch. Then one step
        # carries only the gradient of this block, and the base does not step.
        self.pending: str | None = None
        self.alone: set[str] = set()  # blocks measured in this way
        self.deferred = False  # lengths stay on the device until they are read

    @property
    def measuring(self) -> bool:
        """Whether scales and penalty are not known yet."""
        return len(self.pull) < self.steps

    @property
    def mean_pull(self) -> float:
        """Return the mean length of the first gradients of the loss."""
        return statistics.fmean([length for length in self.pull if length < math.inf] or [0.0])

    def follow_rate(self, rate: Any) -> None:
        """Look at the present learning rate, a number or a tensor that is not read yet."""
        self.rate = rate
        if not isinstance(rate, Tensor):
            self.peak = max(self.peak, rate)

    def unread(self) -> list[Tensor]:
        """Return the lengths that are still on the device."""
        rate: Any = self.rate
        found = [x for lengths in self._lengths() for x in lengths if isinstance(x, Tensor)]
        return [*found, rate] if isinstance(rate, Tensor) else found

    def read(self, numbers: Iterable[float]) -> None:
        """Replace the lengths that `unread` returned by numbers, those not finite by none."""
        left = iter(numbers)
        for lengths in self._lengths():
            known = [next(left) if isinstance(x, Tensor) else x for x in lengths]
            lengths[:] = [x for x in known if math.isfinite(x)]
        del self.rates[len(self.pull) :]
        if isinstance(self.rate, Tensor):
            self.follow_rate(next(left))

    def _lengths(self) -> list[list[Any]]:
        named = (self.change, self.pulls, self.sizes)
        return [self.pull, self.rates, *[lengths for by in named for lengths in by.values()]]

    def measure_blocks(
        self, blocks: BlockVector, values: Mapping[str, Tensor], ranks: Ranks | None
    ) -> None:
        """Measure J_b of some blocks whose values carry a graph.

        Args:
            blocks: all blocks, and the parameters.
            values: values of the blocks, by name.
            ranks: the ranks that average the gradients of these blocks; None if their gradients
                are the same on all ranks.
        """
        for name, value in values.items():
            if name in self.alone or self.pending is not None:
                continue
            seen = self.change.setdefault(name, [])
            if ranks is not None and blocks.sharded:  # FSDP2 keeps these graphs from its shards
                self.pending = name
                continue
            try:
                grads = vjp(value, blocks.params, _signs(value, len(seen)), retain_graph=True)
            except RuntimeError as error:
                if "donated" not in str(error):
                    raise
                self.pending = name
                continue
            present = [grad for grad in grads if grad is not None]
            if ranks is not None and ranks.size > 1:
                present = ranks.averages(present)
            self._note(self.change, name, self.length(present) / math.sqrt(len(value)))
            self.reached[name] = [i for i, grad in enumerate(grads) if grad is not None]

    def probe(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the weight of the batch blocks with which backward measures the pending block."""
        return torch.cat(
            [_signs(v, 0) if name == self.pending else 0 * v.detach() for name, v in values.items()]
        )

    def measure_pending(self, size: int, params: Sequence[Tensor]) -> None:
        """Measure J_b of the pending block of this size, whose gradient is in .grad."""
        name, self.pending = str(self.pending), None
        grads = [p.grad for p in params]
        present = [grad for grad in grads if grad is not None]
        self.change[name] = []
        self._note(self.change, name, self.length(present) / math.sqrt(size))
        lengths = [sharded_norm(g) if g is not None else 0.0 for g in grads]
        self.reached[name] = [i for i, length in enumerate(lengths) if length > 0]
        self.alone.add(name)

    def measure_pull(self, gradient_norm: Any, params: Sequence[Tensor]) -> None:
        """Measure G_b and ‖x_b‖, given .grad of the loss alone and its norm."""
        self._note_pulls([p.grad for p in params])
        if self.measuring:
            self.at = self.at or samples(params)
            self.rates.append(self.rate)
            for name, indices in self.reached.items():
                size = self.length([params[i].detach() for i in indices])
                self._note(self.sizes, name, size)
            self.pull.append(gradient_norm)
            if not self.deferred and any(map(self._runs_away, self.sizes)):
                self.steps = len(self.pull)

    def _runs_away(self, name: str) -> bool:
        """Whether ‖x_b‖ and G_b have doubled: the loss has no minimum without the constraint."""
        both = self.sizes[name], self.pulls[name]
        return all(lengths and lengths[-1] > 2 * lengths[0] > 0 for lengths in both)

    def measure_loss(self, loss: Tensor, blocks: BlockVector, ranks: Ranks) -> None:
        """Measure G_b of a loss whose gradient is not alone in .grad."""
        if self.alone:
            return  # its graph allows one backward only
        grads = vjp(loss.reshape(1), blocks.params, loss.new_ones(1), retain_graph=True)
        if ranks.size > 1:
            averages = iter(ranks.averages([grad for grad in grads if grad is not None]))
            grads = [None if grad is None else next(averages) for grad in grads]
        self._note_pulls(grads)

    def measure_moves(self, params: Sequence[Tensor]) -> None:
        """Measure how far the x_b have gone in the first steps."""
        self.take_moves([norm(move) for move in self.sampled_moves(params)])

    def sampled_moves(self, params: Sequence[Tensor]) -> list[Tensor]:
        """Return how far sampled entries of the parameters have gone, made up for the others."""
        return [
            math.sqrt(p.numel() / max(1, len(a))) * (b - a)
            for p, a, b in zip(params, self.at, samples(params), strict=True)
        ]

    def take_moves(self, lengths: Sequence[float]) -> None:
        """Set d_b from the lengths of the moves of all parameters."""
        ids = self.reached.items()
        self.moves = {name: math.hypot(*[lengths[i] for i in indices]) for name, indices in ids}
        self.at = []

    def length(self, tensors: Sequence[Tensor]) -> Any:
        """Return the norm of some tensors, as a 0-dim tensor if it is to stay on the device."""
        if not self.deferred or not tensors:
            return sharded_norm(*tensors)
        return norm_on_device(*tensors)

    def defer(self, on: bool) -> None:
        """Leave lengths on the device until they are read, or stop to do so."""
        self.deferred = on

    def _note_pulls(self, grads: Sequence[Tensor | None]) -> None:
        for name, indices in self.reached.items():
            self._note(self.pulls, name, self.length(_present(grads, indices)))

    def _note(self, lengths: dict[str, list[float]], name: str, length: Any) -> None:
        """Remember all measurements of the first steps, later those of the last updates."""
        seen = lengths.setdefault(name, [])
        if not isinstance(length, Tensor) and not math.isfinite(length):
            return
        if not self.measuring:
            del seen[: 1 - MEMORY]
        seen.append(length)


def _present(grads: Sequence[Tensor | None], indices: Iterable[int]) -> list[Tensor]:
    return [grad for i in indices if (grad := grads[i]) is not None]


def samples(params: Sequence[Tensor]) -> list[Tensor]:
    """Return evenly spaced entries of every parameter; none of one that is sharded."""
    return [
        p.new_empty(0)
        if is_sharded(p)
        else p.detach().reshape(-1)[:: 1 + p.numel() // SAMPLE].clone()
        for p in params
    ]


def _signs(value: Tensor, index: int) -> Tensor:
    """Return random signs that are the same on all ranks and after a resume."""
    generator = torch.Generator().manual_seed(index)
    bits = torch.randint(0, 2, (len(value),), generator=generator)
    return (2 * bits - 1).to(value, non_blocking=True)


def median(lengths: Sequence[float]) -> float:
    """Return the median of the lengths that are positive and finite; 0 if none is."""
    return statistics.median([x for x in lengths if 0 < x < math.inf] or [0.0])
