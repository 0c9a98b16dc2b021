"""AutomaticUnits: the units in which constraints and loss are comparable.

The first steps train the plain loss and measure, for each block b, the pull G_b of the loss, the
change J_b of the block by a move, and the length δ_b of the move that the base made in these steps
(`unit_measurements.py`). With their medians,

    c_b / (J_b δ_b)     is 1 where a move by δ_b can remove the violation c_b
    U_b = G_b δ_b       is what such a move costs in loss

The block is scaled by s_b = √(U_b/U)/(J_b δ_b), with U = max U_b, and the penalty starts at κU, so
that each block pulls κ times as strongly as the loss where its violation is J_b δ_b. Multiplying a
block or the loss by a constant changes s_b, β and y, but not the training.

Each update takes new medians, since all three change during a run: a rate's proxy saturates, a loss
that was easy becomes hard, and moves are proportional to the learning rate. y is a price in the
user's units and stays.
"""

import copy
import math
import statistics
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torch_powalm.dual import DualState
from torch_powalm.functional import norm, violation
from torch_powalm.training.block_vector import BlockVector
from torch_powalm.training.distributed.reductions import Ranks
from torch_powalm.training.integral_gain import integral_part
from torch_powalm.training.unit_measurements import UnitMeasurements, median

ROOM = 0.3  # part of the moves of the base that a block may claim
MOVE = 0.1  # δ_b relative to ‖x_b‖, where no move was measured
FAINT = 0.1  # least pull of the loss, relative to its first gradients, where their length counts
LONGEST = 3.0  # longest gradient relative to that of the loss, for a base that follows its length
SLOWEST = 0.1  # learning rates below this part of the largest count as this part
LEAST = 0.01  # U_b relative to U, for a block on parameters that the loss hardly uses
_LISTS = ("change", "pulls", "sizes", "reached")
SOFT, FIRM = 10**-0.5, 10**0.5  # κ at the start and at the end of a run


class AutomaticUnits(UnitMeasurements):
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
        super().__init__(steps)
        self.sigma_1, self.follows_length, self.remeasures = sigma_1, follows_length, remeasures
        self.used: dict[str, float] = {}  # the scales in use
        self.due_batch = self.due_static = False  # whether the next step measures these blocks
        self.before: Tensor | None = None  # r at the last update

    def set_steps(self, steps: int) -> None:
        """Set the number of measuring steps."""
        self.steps = steps

    def set_base(self, steps: int, follows_length: bool, remeasures: bool) -> None:
        """Continue with another base; units that are known stay as they are."""
        if self.measuring:
            self.steps = steps
        self.follows_length, self.remeasures = follows_length, remeasures

    @property
    def longest(self) -> float:
        """Return the norm to which a gradient is shortened, for a base that follows its length.

        Multipliers make gradients longer. To SGD this is a larger learning rate; other bases divide
        the gradient by its past size. The first gradients of the loss show which lengths a learning
        rate is made for: their mean, since a loss that is easy without constraints soon vanishes.
        """
        if not self.steps or self.measuring or not self.follows_length:
            return math.inf
        return LONGEST * self.mean_pull or math.inf

    def move(self, name: str) -> float:
        """Return δ_b: a part of d_b, at the present learning rate."""
        rate = statistics.fmean(self.rates) if self.rates else 0.0
        if self.moves.get(name, 0.0) > 0 and rate > 0:
            return ROOM * self.moves[name] * max(self.rate, SLOWEST * self.peak) / rate
        return self.substantial_move(name)

    def substantial_move(self, name: str) -> float:
        """Return a tenth of ‖x_b‖, or how far it has grown for parameters that start at 0."""
        first, last = self.sizes[name][0], self.sizes[name][-1]
        return max(MOVE * last, abs(last - first)) or MOVE

    def loss_pull(self, name: str) -> float:
        """Return G_b, at least a part of the first gradients if the learning rate is made for them.

        A penalty as weak as the gradient of a loss that has vanished would not move parameters.
        """
        least = FAINT * self.mean_pull if self.follows_length else 0.0
        return max(median(self.pulls[name]), least)

    def cost(self, name: str) -> float:
        """Return U_b."""
        return self.loss_pull(name) * self.move(name)

    def sensitivity(self, name: str) -> float:
        """Return J_b."""
        return median(self.change.get(name, []))

    def reach(self, name: str) -> float:
        """Return what a substantial move changes of a block; 0 if nothing was measured."""
        return self.sensitivity(name) * self.substantial_move(name) if name in self.sizes else 0.0

    @property
    def unit(self) -> float:
        """Return U, the unit of the penalty; 1 if the loss has no gradient."""
        return max(map(self.cost, self.pulls), default=0.0) or 1.0

    def scale(self, name: str) -> float:
        """Return s_b; 0 for a block that no move of the parameters has changed so far.

        A block that sleeps (its gradient vanishes where it holds) keeps its last scale, so that its
        multiplier acts at once when it wakes up.
        """
        change = self.sensitivity(name)
        change = change and change * self.move(name)
        if not change > 1e-300:  # a smaller one has no reciprocal
            return self.used.get(name, 0.0)
        return math.sqrt(max(self.cost(name) / self.unit, LEAST)) / change

    def beta(self, progress: float) -> float:
        """Return the penalty after a part of the run: soft at its start, firm at its end."""
        kappa = math.exp((1 - progress) * math.log(SOFT) + progress * math.log(FIRM))
        return kappa * self.unit

    def inverse_penalty(self, dual: DualState) -> float:
        """Return 1/β in the measured units, with the pull of the loss as unit of gradients.

        0 as long as the penalty is not known.
        """
        if not self.steps:
            return 1 / dual.beta
        return median(self.pull) * self.unit / dual.beta if dual.started else 0.0

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
            self._take(blocks)
        scale = self.scales(blocks, r) if self.steps or blocks.given else None
        if self.steps:
            dual.set_units(self.beta(0.0), self.sigma_1 * self.beta(0.0), far=1.0)
        dual.start(r, blocks.inequality, blocks.groups(), scale)

    def renew(self, dual: DualState, blocks: BlockVector) -> None:
        """At an update, take the units measured since the last one; the next step measures."""
        if self.remeasures and not blocks.sharded:
            self._take(blocks)
            dual.rescale(self.scales(blocks, dual.y))

    def _take(self, blocks: BlockVector) -> None:
        names = [*blocks.sizes, *(part.name for part in blocks.indexed)]
        self.used = {name: self.scale(name) for name in names}
        again = self.remeasures and not blocks.sharded
        self.due_batch, self.due_static = (
            again and bool(blocks.batch or blocks.indexed),
            again and bool(blocks.static),
        )

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

    def part(self, r: Tensor, blocks: BlockVector, beta: float, steps: int, left: int) -> Tensor:
        """Return how much of its move y makes, by entry, `left` steps before the end of the run."""
        before, self.before = self.before, r.clone()
        if not self.remeasures or not blocks.sizes:
            return torch.ones_like(r)
        u = blocks.split(self.scales(blocks, r) * violation(r, blocks.inequality))
        distance = torch.cat([torch.full_like(u_b, norm(u_b)) for u_b in u.values()])
        updates, kappa = left / max(1, steps), beta / self.unit
        return integral_part(r, before, distance, kappa, steps, blocks.momentum, updates)

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
            "used": dict(self.used),
            "at": list(self.at),
            "moves": dict(self.moves),
            "rates": [self.rate, self.peak, *self.rates],
            "due": [self.due_batch, self.due_static],
            "before": self.before,
            "alone": sorted(self.alone),
            **{key: {name: list(x) for name, x in getattr(self, key).items()} for key in _LISTS},
        }

    def restored(self, state: Mapping[str, Any]) -> "AutomaticUnits":
        """Return units with saved measurements."""
        other = copy.copy(self)
        other.steps, other.pull = state["steps"], list(state["pull"])
        other.used, other.at, other.before = dict(state["used"]), list(state["at"]), state["before"]
        other.moves = dict(state["moves"])
        other.rate, other.peak, *other.rates = state["rates"]
        (other.due_batch, other.due_static), other.alone = state["due"], set(state["alone"])
        for key in _LISTS:
            setattr(other, key, {name: list(values) for name, values in state[key].items()})
        return other

    def take_over(self, other: "AutomaticUnits") -> None:
        """Become equal to other units."""
        self.__dict__.update(other.__dict__)
