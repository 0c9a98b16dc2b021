"""UnitScales: the units of constraints and loss, computed from what was measured.

For each block b, with its pull G_b of the loss, change J_b by a move, and length δ_b of a move,

    c_b / (J_b δ_b)     is 1 where a move by δ_b can remove the violation c_b
    U_b = G_b δ_b       is what such a move costs in loss

The block is scaled by s_b = √(U_b/U)/(J_b δ_b), with U = max U_b, and the penalty starts at κU, so
that each block pulls κ times as strongly as the loss where its violation is J_b δ_b.

The proxy of a rate may be asleep: flat wherever the rate is what it should be. Its J_b would be
next to nothing, and its pull, once it wakes up, beyond measure. So J_b is a mean, which few batches
that are awake decide; it is at least a part of the largest so far; and a block that holds by m and
has no multiplier counts as one that a move changes by m, as it has if it is violated next.
"""

import math
import statistics

from torch_powalm.dual import DualState
from torch_powalm.training.unit_measurements import UnitMeasurements, median

ROOM = 0.3  # part of the moves of the base that a block may claim
MOVE = 0.1  # δ_b relative to ‖x_b‖, where no move was measured
FAINT = 0.1  # least pull of the loss, relative to its first gradients, where their length counts
LONGEST = 3.0  # longest gradient relative to that of the loss, for a base that follows its length
SLOWEST = 0.1  # learning rates below this part of the largest count as this part
LEAST = 0.01  # U_b relative to U, for a block on parameters that the loss hardly uses
ASLEEP = 0.1  # least J_b relative to the largest so far
SOFT, FIRM = 10**-0.5, 10**0.5  # κ at the start and at the end of a run


class UnitScales(UnitMeasurements):
    """Scales and the unit of the penalty, as functions of the measurements.

    Args:
        steps: number of measuring steps; 0 if nothing is measured.
        follows_length: whether steps of the base are proportional to the gradient, as with SGD.
    """

    def __init__(self, steps: int, follows_length: bool) -> None:
        super().__init__(steps)
        self.follows_length = follows_length
        self.used: dict[str, float] = {}  # the scales in use
        self.peaks: dict[str, float] = {}  # the largest J_b so far

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
        mean = statistics.fmean(self.change.get(name) or [0.0])
        return max(mean, ASLEEP * self.peaks.get(name, 0.0))

    def reach(self, name: str) -> float:
        """Return what a substantial move changes of a block; 0 if nothing was measured."""
        return self.sensitivity(name) * self.substantial_move(name) if name in self.sizes else 0.0

    @property
    def unit(self) -> float:
        """Return U, the unit of the penalty; 1 if the loss has no gradient."""
        return max(map(self.cost, self.pulls), default=0.0) or 1.0

    def scale(self, name: str, room: float = 0.0) -> float:
        """Return s_b; 0 for a block that no move of the parameters has changed so far.

        A block that sleeps (its gradient vanishes where it holds) keeps its last scale, so that its
        multiplier acts at once when it wakes up.

        Args:
            name: of the block.
            room: by how much a block without a multiplier holds.
        """
        change = self.sensitivity(name)
        change = change and max(change * self.move(name), room)
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
