"""AutomaticUnits: the units of constraints and loss, from the start to the end of a run.

The first steps train the plain loss and measure, for each block b, the pull G_b of the loss, the
change J_b of the block by a move, and the length δ_b of the move that the base made in these steps
(`unit_measurements.py`). The scale of the block and the penalty follow from these
(`unit_scales.py`). Multiplying a block or the loss by a constant changes s_b, β and y, but not the
training.

Each update takes new ones, since all three change during a run: a rate's proxy saturates, a loss
that was easy becomes hard, and moves are proportional to the learning rate. y is a price in the
user's units and stays.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torch_powalm.dual import DualState
from torch_powalm.functional import norm, violation
from torch_powalm.training.block_vector import BlockVector
from torch_powalm.training.distributed.reductions import Ranks
from torch_powalm.training.integral_gain import IntegralGain
from torch_powalm.training.unit_scales import UnitScales
from torch_powalm.training.unit_state import BY_NAME

_LISTS = ("change", "pulls", "sizes", "reached")


class AutomaticUnits(UnitScales):
    """Scales of the blocks and the penalty, from measurements.

    Args:
        steps: number of measuring steps; 0 if nothing is measured.
        sigma_1: first dual step, in multiples of the first penalty.
        follows_length: whether steps of the base are proportional to the gradient, as with SGD.
        remeasures: whether the units follow the run; not with a base that searches (LBFGS).
    """

    def __init__(
        self, steps: int, sigma_1: float, follows_length: bool, remeasures: bool = True
    ) -> None:
        super().__init__(steps, follows_length)
        self.sigma_1, self.remeasures = sigma_1, remeasures
        self.due_batch = self.due_static = False  # whether the next step measures these blocks
        self.integral = IntegralGain()

    def set_steps(self, steps: int) -> None:
        """Set the number of measuring steps."""
        self.steps = steps

    def set_base(self, steps: int, follows_length: bool, remeasures: bool) -> None:
        """Continue with another base; units that are known stay as they are."""
        if self.measuring:
            self.steps = steps
        self.follows_length, self.remeasures = follows_length, remeasures

    def scales(self, blocks: BlockVector, r: Tensor) -> Tensor:
        """Return the factors of all entries of r: given, measured, or 1."""
        sizes = blocks.sizes.items()
        scales = {n: blocks.given.get(n) or (self.used[n] if self.steps else 1.0) for n, _ in sizes}
        filled = [r.new_full((size,), scales[name]) for name, size in sizes]
        return torch.cat(filled) if filled else r.new_zeros(0)

    def start(self, dual: DualState, blocks: BlockVector, r: Tensor) -> None:
        """Start the multipliers, in the measured units if there are any."""
        if self.steps and not self.used:
            if self.at and self.steps > 1 and not blocks.sharded:
                self.measure_moves(blocks.params)
            self._take(blocks, r, torch.zeros_like(r))
        scale = self.scales(blocks, r) if self.steps or blocks.given else None
        if self.steps:
            dual.set_units(self.beta(0.0), self.sigma_1 * self.beta(0.0), far=1.0)
        dual.start(r, blocks.inequality, blocks.groups(), scale)

    def renew(self, dual: DualState, blocks: BlockVector, r: Tensor) -> None:
        """At an update, take the units measured since the last one; the next step measures."""
        if self.remeasures and not blocks.sharded:
            self._take(blocks, r, dual.y)
            dual.rescale(self.scales(blocks, dual.y))

    def _take(self, blocks: BlockVector, r: Tensor, y: Tensor) -> None:
        names = [*blocks.sizes, *(part.name for part in blocks.indexed)]
        self.peaks = {n: max(self.peaks.get(n, 0.0), self.sensitivity(n)) for n in names}
        rooms = _rooms(blocks, r, y)
        self.used = {name: self.scale(name, rooms.get(name, 0.0)) for name in names}
        again = self.remeasures and not blocks.sharded
        self.due_batch = again and bool(blocks.batch or blocks.indexed)
        self.due_static = again and bool(blocks.static)

    def measure_batch(
        self, loss: Tensor, blocks: BlockVector, values: Mapping[str, Tensor], ranks: Ranks
    ) -> None:
        """Measure the batch blocks and, once multipliers have started, the pull of the loss."""
        self.measure_blocks(blocks, values, ranks)
        if self.due_batch:
            self.due_batch = False
            self.measure_loss(loss, blocks, ranks)

    def measure_static(self, blocks: BlockVector) -> None:
        """Measure the parameter-only blocks, before their gradient is added to .grad."""
        with torch.enable_grad():
            self.measure_blocks(blocks, blocks.static_values(), None)
        if self.due_static:
            self.due_static = False
            if not blocks.batch and not blocks.indexed:
                self.measure_pull(0.0, blocks.params)

    def part(
        self, r: Tensor, blocks: BlockVector, dual: DualState, steps: int, left: int
    ) -> Tensor:
        """Return how much of its move y makes, by entry, `left` steps before the end of the run."""
        if not self.remeasures or not blocks.sizes:
            return torch.ones_like(r)
        s, u = self.scales(blocks, r), violation(r, blocks.inequality)
        distance = torch.cat([torch.full_like(v, norm(v)) for v in blocks.split(s * u).values()])
        pull = torch.where(s > 0, dual.y.abs() / s, 0.0) / self.unit
        run = dual.beta / self.unit, steps, blocks.momentum, left / max(1, steps)
        return self.integral.part(r, u != 0, distance, pull, *run)

    def restored_dual(
        self, dual: DualState, state: Mapping[str, Any], blocks: BlockVector
    ) -> DualState:
        """Return the multipliers of a saved state in these units; y is None if not started."""
        restored = copy.copy(dual)
        if state["y"] is not None:
            self.start(restored, blocks, state["y"])
        restored.load_state_dict(state)
        return restored

    def state_dict(self) -> dict[str, Any]:
        """Return the measurements."""
        return {
            "steps": self.steps,
            "pull": list(self.pull),
            "at": list(self.at),
            "rates": [self.rate, self.peak, *self.rates],
            "due": [self.due_batch, self.due_static],
            **self.integral.state_dict(),
            "alone": sorted(self.alone),
            **{key: dict(getattr(self, key)) for key in BY_NAME},
            **{key: {name: list(x) for name, x in getattr(self, key).items()} for key in _LISTS},
        }

    def restored(self, state: Mapping[str, Any]) -> "AutomaticUnits":
        """Return units with saved measurements."""
        other = copy.copy(self)
        other.steps, other.pull = state["steps"], list(state["pull"])
        other.at = list(state["at"])
        other.integral = IntegralGain.restored(state["before"], state["pace"])
        other.rate, other.peak, *other.rates = state["rates"]
        (other.due_batch, other.due_static), other.alone = state["due"], set(state["alone"])
        for key in BY_NAME:
            setattr(other, key, dict(state[key]))
        for key in _LISTS:
            setattr(other, key, {name: list(values) for name, values in state[key].items()})
        return other

    def take_over(self, other: "AutomaticUnits") -> None:
        """Become equal to other units."""
        self.__dict__.update(other.__dict__)


def _rooms(blocks: BlockVector, r: Tensor, y: Tensor) -> dict[str, float]:
    """Return by how much each block of inequalities holds that has no multiplier."""
    if blocks.inequality is None:
        return {}
    free = blocks.inequality & (y == 0)
    largest = torch.where(free, r, torch.inf)
    rooms = {name: -float(part.max()) for name, part in blocks.split(largest).items()}
    return {name: room for name, room in rooms.items() if room > 0}
