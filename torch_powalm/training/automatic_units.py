"""AutomaticUnits: measures the units in which constraints and loss are comparable.

Over the first steps, which train the plain loss, two lengths are measured for each block b, over
the parameters x_b that it depends on: the pull of the loss G_b = ‖∇loss‖, and the change
J_b = ‖J_bᵀz‖/√m of the block's m entries, where z is a vector of random signs. With their medians,
and with the length δ_b of a substantial move of these parameters,

    c_b / (J_b δ_b)     is 1 where a move by δ_b can remove the violation c_b
    U_b = G_b δ_b       is what such a move costs in loss

The block is scaled by s_b = √(U_b/U)/(J_b δ_b), with U = max U_b, and the penalty starts at κU, so
that each block pulls κ times as strongly as the loss where its violation is J_b δ_b. Multiplying a
block or the loss by a constant changes s_b, β and y, but not the training.
"""

import copy
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_powalm.dual import DualState
from torch_powalm.training.block_vector import BlockVector
from torch_powalm.training.distributed.reductions import Ranks
from torch_powalm.training.distributed.sharded_tensors import sharded_norm
from torch_powalm.training.insistence import Insistence
from torch_powalm.training.vector_jacobian import vjp

MOVE = 0.1  # δ_b relative to ‖x_b‖
LONGEST = 3.0  # longest gradient relative to that of the loss, for a base that follows its length
LEAST = 0.01  # U_b relative to U, for a block on parameters that the loss hardly uses
SOFT, FIRM = 10**-0.5, 10**0.5  # κ at the start and at the end of a run


class AutomaticUnits:
    """Scales of the blocks and the penalty, from measurements over the first steps.

    Args:
        steps: number of measuring steps; 0 if nothing is measured.
        sigma_1: first dual step, in multiples of the first penalty.
        follows_length: whether steps of the base are proportional to the gradient, as with SGD.
    """

    def __init__(self, steps: int, sigma_1: float, follows_length: bool) -> None:
        self.steps, self.sigma_1, self.follows_length = steps, sigma_1, follows_length
        self.pull: list[float] = []  # ‖∇loss‖ over all parameters, at each step
        self.change: dict[str, list[float]] = {}  # J_b
        self.pulls: dict[str, list[float]] = {}  # G_b
        self.sizes: dict[str, list[float]] = {}  # ‖x_b‖
        self.insistence = Insistence()
        self._reached: dict[str, list[int]] = {}  # indices of x_b among the parameters
        # torch.compile and FSDP2 do not allow a second backward through a batch. Then one step
        # carries only the gradient of this block, and the base does not step.
        self.pending: str | None = None
        self._measured_alone: set[str] = set()

    @property
    def measuring(self) -> bool:
        """Whether scales and penalty are not known yet."""
        return len(self.pull) < self.steps

    def set_steps(self, steps: int) -> None:
        """Set the number of measuring steps."""
        self.steps = steps

    def set_base(self, steps: int, follows_length: bool) -> None:
        """Continue with another base; units that are known stay as they are."""
        if self.measuring:
            self.steps = steps
        self.follows_length = follows_length

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
            if name in self._measured_alone or self.pending is not None:
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
            seen.append(sharded_norm(*present) / math.sqrt(len(value)))
            self._reached[name] = [i for i, grad in enumerate(grads) if grad is not None]

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
        self.change[name] = [sharded_norm(*present) / math.sqrt(size)]
        self._reached[name] = [
            i for i, g in enumerate(grads) if g is not None and sharded_norm(g) > 0
        ]
        self._measured_alone.add(name)

    def measure_pull(self, gradient_norm: float, params: Sequence[Tensor]) -> None:
        """Measure G_b and ‖x_b‖, given the norm of the gradient of the loss in .grad."""
        self.pull.append(gradient_norm)
        for name, indices in self._reached.items():
            reached = [params[i] for i in indices]
            grads = [p.grad for p in reached if p.grad is not None]
            self.pulls.setdefault(name, []).append(sharded_norm(*grads))
            size = sharded_norm(*[p.detach() for p in reached])
            self.sizes.setdefault(name, []).append(size)

    @property
    def longest(self) -> float:
        """Return the norm to which a gradient is shortened, for a base that follows its length.

        Multipliers make gradients longer. To SGD this is a larger learning rate; other bases divide
        the gradient by its past size.
        """
        if not self.steps or self.measuring or not self.follows_length:
            return math.inf
        return LONGEST * _median(self.pull) or math.inf

    def move(self, name: str) -> float:
        """Return δ_b; parameters that start at 0 have moved as far as they are long."""
        first, last = self.sizes[name][0], self.sizes[name][-1]
        return max(MOVE * last, abs(last - first)) or MOVE

    def loss_pull(self, name: str) -> float:
        """Return G_b."""
        return _median(self.pulls[name])

    def cost(self, name: str) -> float:
        """Return U_b."""
        return self.loss_pull(name) * self.move(name)

    def reach(self, name: str) -> float:
        """Return J_b δ_b, the violation that a move by δ_b can remove; 0 if none was measured."""
        return _median(self.change[name]) * self.move(name) if name in self.sizes else 0.0

    @property
    def unit(self) -> float:
        """Return U, the unit of the penalty; 1 if the loss has no gradient."""
        return max(map(self.cost, self.pulls), default=0.0) or 1.0

    def scale(self, name: str) -> float:
        """Return s_b; 0 for a block that no move of the parameters has changed."""
        change = _median(self.change.get(name, []))
        if not change > 0:
            return 0.0
        share = max(self.cost(name) / self.unit, LEAST)
        return math.sqrt(share) / (change * self.move(name))

    def beta(self, progress: float) -> float:
        """Return the penalty after a part of the run: soft at its start, firm at its end."""
        kappa = math.exp((1 - progress) * math.log(SOFT) + progress * math.log(FIRM))
        return kappa * self.insistence.gain * self.unit

    def inverse_penalty(self, dual: DualState) -> float:
        """Return 1/β in the measured units, with the pull of the loss as unit of gradients.

        0 as long as the penalty is not known.
        """
        if not self.steps:
            return 1 / dual.beta
        return _median(self.pull) * self.unit / dual.beta if dual.started else 0.0

    def scales(self, blocks: BlockVector, r: Tensor) -> Tensor:
        """Return the factors of all entries of r: given, measured, or 1."""
        sizes = blocks.sizes.items()
        scales = {
            n: blocks.given.get(n) or (self.scale(n) if self.steps else 1.0) for n, _ in sizes
        }
        return torch.cat([r.new_full((size,), scales[name]) for name, size in sizes])

    def start(self, dual: DualState, blocks: BlockVector, r: Tensor) -> None:
        """Start the multipliers, in the measured units if there are any."""
        scale = self.scales(blocks, r) if self.steps or blocks.given else None
        if self.steps:
            dual.set_units(self.beta(0.0), self.sigma_1 * self.beta(0.0), far=1.0)
        dual.start(r, blocks.inequality, blocks.groups(), scale)

    def restored_dual(
        self, dual: DualState, state: Mapping[str, Any], blocks: BlockVector
    ) -> DualState:
        """Return the multipliers of a saved state in these units; y is None if not started."""
        fresh = dual.fresh()
        if state["y"] is not None:
            self.start(fresh, blocks, state["y"])
            fresh.load_state_dict(state)
        return fresh

    def state_dict(self) -> dict[str, Any]:
        """Return the measurements."""
        return {
            "steps": self.steps,
            "pull": list(self.pull),
            "insistence": self.insistence.state_dict(),
            **{
                key: {name: list(values) for name, values in getattr(self, key).items()}
                for key in ("change", "pulls", "sizes")
            },
        }

    def restored(self, state: Mapping[str, Any]) -> "AutomaticUnits":
        """Return units with saved measurements."""
        other = copy.copy(self)
        other.steps, other.pull = state["steps"], list(state["pull"])
        other.insistence = Insistence.restored(state["insistence"])
        for key in ("change", "pulls", "sizes"):
            setattr(other, key, {name: list(values) for name, values in state[key].items()})
        return other

    def take_over(self, other: "AutomaticUnits") -> None:
        """Become equal to other units."""
        self.__dict__.update(other.__dict__)


def _median(lengths: Sequence[float]) -> float:
    """Return the median of the lengths that are positive and finite; 0 if none is."""
    return statistics.median([x for x in lengths if 0 < x < math.inf] or [0.0])


def _signs(value: Tensor, index: int) -> Tensor:
    """Return random signs that are the same on all ranks and after a resume."""
    generator = torch.Generator().manual_seed(index)
    bits = torch.randint(0, 2, (len(value),), generator=generator)
    return (2 * bits - 1).to(value)
