"""AutomaticUnits: measures in which units constraints and loss are comparable.

Over the first steps, which train the plain loss, two things are measured: G = ‖∇loss‖, and for each
block b the change J_b = ‖J_bᵀz‖/√m of its m entries with a move of the parameters x, where z is a
vector of random signs. With the medians over these steps and the length δ of a substantial move,

    s_b = 1/(J_b δ)     scale of the block: its value is 1 where a move by δ can remove it
    β_1 = κ G δ         then it pulls as strongly as the loss (κ = 1)

Multiplying a block or the loss by a constant changes s_b, β_1 and y, but not the training.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_powalm.dual import DualState
from torch_powalm.functional import norm
from torch_powalm.training.block_vector import BlockVector
from torch_powalm.training.distributed.reductions import Ranks
from torch_powalm.training.distributed.sharded_tensors import sharded_norm
from torch_powalm.training.vector_jacobian import vjp

STEPS = 20  # measuring steps, if the run is not known to be short
MOVE = 0.1  # δ relative to ‖x‖


class AutomaticUnits:
    """Scales of the blocks and first penalty, from measurements over the first steps.

    Args:
        steps: number of measuring steps; 0 if nothing is measured.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.pull: list[float] = []  # G of each step
        self.change: dict[str, list[float]] = {}  # J_b of each step or micro-batch
        self.move = 0.0  # δ
        self.reached: dict[str, set[int]] = {}
        self.pulls: dict[str, list[float]] = {}
        self.moves: dict[str, float] = {}
        self.local = True
        self.kappa = 1.0
        self.known = False
        self.ramp = 10.0**0.5

    @property
    def measuring(self) -> bool:
        """Whether scales and penalty are not known yet."""
        return len(self.pull) < self.steps

    def measure_blocks(
        self, blocks: BlockVector, values: Mapping[str, Tensor], ranks: Ranks | None
    ) -> None:
        """Measure J_b of some blocks whose values carry a graph.

        Args:
            blocks: all blocks, and the parameters.
            values: values of the blocks, by name.
            ranks: the ranks that average the gradients of these blocks; None if they are the same
                on all ranks.
        """
        params = blocks.params
        for name, value in values.items():
            seen = self.change.setdefault(name, [])
            grads = vjp(value, params, _signs(value, len(seen)), retain_graph=True)
            present = [grad for grad in grads if grad is not None]
            if ranks is not None and ranks.size > 1:
                ranks.average(present)
            total = sharded_norm(*present) if blocks.sharded else norm(*present)
            seen.append(total / math.sqrt(len(value)))
            if total > 0:
                reached = self.reached.setdefault(name, set())
                reached.update(i for i, g in enumerate(grads) if g is not None and norm(g) > 0)

    def measure_pull(self, gradient_norm: float, params: Sequence[Tensor]) -> None:
        """Record the norm of the gradient of the loss, and the size of the parameters."""
        self.pull.append(gradient_norm)
        self.move = MOVE * sharded_norm(*[p.detach() for p in params])
        for name, reached in self.reached.items():
            grads = [p.grad for i, p in enumerate(params) if i in reached and p.grad is not None]
            if not self.local: grads=[p.grad for p in params if p.grad is not None]
            self.pulls.setdefault(name, []).append(norm(*grads))
            self.moves[name] = MOVE * norm(*[p.detach() for i, p in enumerate(params) if i in reached or not self.local])

    def scale(self, name: str) -> float:
        """Return s_b; 0 for a block that no move of the parameters has changed so far."""
        change = [c for c in self.change.get(name, []) if 0 < c < math.inf]
        if not change or not self.block_unit(name) > 0:
            return 0.0
        return math.sqrt(self.block_unit(name) / self.unit) / (statistics.median(change) * self.moves[name])

    def block_unit(self, name: str) -> float:
        pulls = [g for g in self.pulls.get(name, []) if 0 < g < math.inf]
        return statistics.median(pulls) * self.moves[name] if pulls else 0.0

    @property
    def unit(self) -> float:
        """Return G δ, the unit of the penalty."""
        return max([self.block_unit(name) for name in self.change], default=0.0) or 1.0

    def start(self, dual: DualState, blocks: BlockVector, r: Tensor) -> None:
        """Start the multipliers with the measured scales and penalty, if they were measured."""
        scale = None
        if self.steps:
            dual.beta_1 = self.kappa * self.unit / self.ramp
            if dual.sigma_1_auto:
                dual.sigma_1 = dual.beta_1
            scale = torch.cat(
                [r.new_full((size,), self.scale(name)) for name, size in blocks.sizes.items()]
            )
        dual.start(r, blocks.inequality, blocks.groups(), scale)

    def growth(self, beta: float, progress: float | None) -> float | None:
        """Return the factor of β at an update: soft at the start of a run, firm at its end."""
        if not self.steps or progress is None or self.ramp == 1:
            return None
        return self.kappa * self.ramp ** (2 * progress - 1) * self.unit / beta

    def state_dict(self) -> dict[str, Any]:
        """Return the measurements."""
        return {"pull": list(self.pull), "change": {k: list(v) for k, v in self.change.items()},
                "move": self.move}


def _signs(value: Tensor, index: int) -> Tensor:
    """Return random signs: the same ones on all ranks, and after a resume."""
    generator = torch.Generator().manual_seed(index)
    bits = torch.randint(0, 2, (len(value),), generator=generator)
    return (2 * bits - 1).to(value)
