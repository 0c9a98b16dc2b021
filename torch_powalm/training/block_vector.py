"""BlockVector: converts between the blocks of an optimizer and one flat vector r = (A, B)."""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_powalm.functional import norm
from torch_powalm.result import Violation
from torch_powalm.training.batch_window import Tallies
from torch_powalm.training.block import Block
from torch_powalm.training.distributed.sharded_tensors import full, is_sharded
from torch_powalm.training.full_precision import full_precision
from torch_powalm.training.given_units import given_scales
from torch_powalm.training.indexed.indexed_multipliers import IndexedMultipliers
from torch_powalm.training.margin import Margin
from torch_powalm.training.on_device.mode import check_mode, is_deferred, largest_rate
from torch_powalm.training.optimizer_protocol import check_params
from torch_powalm.training.registry import ConstraintRegistry


class BlockVector:
    """Blocks as one flat vector: parameter-only blocks first, then batch blocks.

    The sizes of parameter-only blocks are determined on first use, when the model is already on the
    device where it is trained; a later change raises.

    Args:
        base: the optimizer whose parameters x are trained.
        constraints: the registry of the blocks.
        owns: names of the blocks; None for all blocks in the registry.
        coupling: "all" (one norm over all blocks) or "block" (one norm each).
        optional: whether there may be no blocks.
        factors: factors of the blocks in the penalty, by name; None for 1.
        margin: how much stricter the multipliers see the inequalities; None for 0.
        check_finite: "every_step", "at_update", or "auto" (the first on the CPU).
    """

    def __init__(
        self,
        base: Optimizer,
        constraints: ConstraintRegistry,
        owns: Sequence[str] | None,
        coupling: str,
        optional: bool = False,
        factors: Mapping[str, float] | None = None,
        margin: Margin | None = None,
        check_finite: str = "every_step",
    ) -> None:
        if not isinstance(constraints, ConstraintRegistry):
            got = type(constraints).__name__
            raise TypeError(f"constraints must be a ConstraintRegistry, got {got}")
        if coupling not in ("all", "block"):
            raise ValueError(f"coupling must be 'all' or 'block', got {coupling!r}")
        if isinstance(owns, str):
            raise TypeError(f"owns must be a sequence of names, got {owns!r}")
        self.base, self._constraints, self.coupling = base, constraints, coupling
        self._check_finite = check_mode(check_finite)
        self._owns = None if owns is None else list(owns)
        self.optional, self._factors = optional, factors
        self.margin = Margin(0.0, None, constraints) if margin is None else margin
        self._learned, self._handed_over = False, False
        self.static: list[Block] = []  # functions of the parameters
        self.batch: list[Block] = []
        self.indexed: list[IndexedMultipliers] = []  # blocks with an index, not in the vector
        self.sizes: dict[str, int] = {}
        self.static_size = 0
        self.device = self.host = torch.device("cpu")  # of the values, and of the multipliers
        self.deferred = False  # checks wait for the next update, so that a step reads nothing
        self.sharded = False  # parameters are split over processes, so values may be too
        self.given: dict[str, float] = {}  # scales that need no measurement
        self.inequality: Tensor | None = None  # mask of the inequalities; None if there are none
        self.verified = False  # every block is known to depend on a parameter

    @property
    def names(self) -> list[str]:
        """Names of the blocks."""
        return list(self._constraints.blocks) if self._owns is None else self._owns

    @property
    def registered(self) -> list[Block]:
        """The blocks, in the order of their names."""
        return [self._constraints.blocks[name] for name in self.names]

    @property
    def params(self) -> list[Tensor]:
        """All parameters x of all groups of the base."""
        return [p for group in self.base.param_groups for p in group["params"]]

    @property
    def momentum(self) -> float:
        """The largest momentum of the base, or 0.9 if it has none by name; always below 1."""
        groups = self.base.param_groups
        found = (float(g.get("momentum", g.get("betas", (0.9,))[0])) for g in groups)
        return min(max(found, default=0.9), 0.99)

    @property
    def rate(self) -> Any:
        """The largest learning rate of the base; 1 if it has none. If deferred, maybe a tensor."""
        return largest_rate(self.base, self.deferred, self.device)

    def ready(self) -> "BlockVector":
        """Return self, with sizes known; raise if another optimizer owns one of the blocks."""
        if self._handed_over:
            raise RuntimeError(
                f"constraints {', '.join(self.names)} were handed over to another base; "
                "use the optimizer that with_base() returned"
            )
        if not self._learned:
            self._learn()
        owners = self._constraints.owners
        for name in self.sizes:
            if owners[name] is not self:
                raise RuntimeError(
                    f"constraint {name!r} is owned by an optimizer that was built later; "
                    "declare the blocks of each optimizer with owns="
                )
        return self

    def _learn(self) -> None:
        blocks, names, params = self._constraints.blocks, self.names, self.params
        for name in names:
            if name not in blocks:
                raise KeyError(f"owns must have registered constraints only, got {name!r}")
        if not names and not self.optional:
            raise ValueError(
                "constraints must have at least one block, got none; add one with equality() or "
                "inequality(), or step the base itself"
            )
        check_params(params)
        self.device, self.sharded = params[0].device, any(is_sharded(p) for p in params)
        self._choose_host()
        self.static = [blocks[name] for name in names if blocks[name].fn is not None]
        indexed = self._constraints.indexed
        self.batch = [blocks[n] for n in names if blocks[n].fn is None and n not in indexed]
        self.indexed = [indexed[name] for name in names if name in indexed]
        for part in self.indexed:
            double = params[0].dtype == torch.float64
            kind = torch.float64 if double else torch.float32
            part.place(self.device, kind, self.deferred)
        self.given = given_scales([blocks[name] for name in names], self._factors)
        with torch.no_grad():
            sizes = {name: len(value) for name, value in self.static_values().items()}
        self.static_size = sum(sizes.values())
        sizes |= {block.name: block.size or 0 for block in self.batch}
        kinds = [block.inequality for block in (*self.static, *self.batch)]
        if any(kinds):
            lengths = torch.tensor(list(sizes.values()))
            self.inequality = torch.tensor(kinds).repeat_interleave(lengths).to(self.host)
        self.margin.start((*self.static, *self.batch), sizes)
        self._constraints.claim(names, self)
        self.sizes, self._learned = sizes, True

    def hand_over(self, base: Optimizer) -> "BlockVector":
        """Return the same blocks for another base; these are not ready any more."""
        other = copy.copy(self)
        other.base = base
        other._choose_host()
        if self._learned:
            self._constraints.claim(self.names, other)
        self._handed_over = True
        return other

    def _choose_host(self) -> None:
        self.deferred = is_deferred(self._check_finite, self.device, self.base)
        self.host = torch.device("cpu") if self.deferred else self.device
        self.inequality = None if self.inequality is None else self.inequality.to(self.host)

    def mark_verified(self) -> None:
        """Record that every parameter-only block depends on a parameter."""
        self.verified = True

    def groups(self) -> list[slice] | None:
        """Return the parts of r that have their own norm; None for one norm over all."""
        if self.coupling == "all":
            return None
        ends = list(torch.tensor(list(self.sizes.values())).cumsum(0).tolist())
        return [slice(e - size, e) for e, size in zip(ends, self.sizes.values(), strict=True)]

    def evaluate(self) -> Tensor:
        """Return the parameter-only blocks as a flat vector, with a graph if grad is enabled."""
        values = list(self.static_values().values())
        return values[0] if len(values) == 1 else torch.cat(values)

    def static_values(self) -> dict[str, Tensor]:
        """Return the values of the parameter-only blocks by name."""
        values = {}
        with full_precision(self.device):
            for block in self.static:
                raw = block.evaluate()
                value = block.flat(full(raw) if self.sharded else raw, self.sizes.get(block.name))
                values[block.name] = value if value.device == self.device else value.to(self.device)
        return values

    def batch_values(self, tallies: Tallies) -> Tensor:
        """Return the batch blocks as a flat vector."""
        values = [tallies[block.name].value(block) for block in self.batch]
        return (values[0] if len(values) == 1 else torch.cat(values)).to(self.device)

    def split_batch(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the pieces of a vector of the batch blocks by name."""
        names = [block.name for block in self.batch]
        pieces = torch.split(vector, [self.sizes[name] for name in names])
        return dict(zip(names, pieces, strict=True))

    def join(self, static: Tensor | None, batch: Tensor | None) -> Tensor:
        """Return the whole vector from its two parts; a part is None if it has no blocks."""
        if batch is None and static is not None:
            return static.detach()
        if static is None and batch is not None:
            return batch.detach()
        if static is None or batch is None:
            return torch.zeros(0, device=self.device)
        return torch.cat([static.detach(), batch.detach()])

    def epoch_sums_with(self, seen: Tallies) -> Tallies:
        """Return the sums of the epoch including this step; statistics of another shape raise."""
        past = self._constraints.epoch_sums(seen)
        added = {name for name in past if not self._constraints.blocks[name].latest}
        return {name: past[name].plus(t) if name in added else t for name, t in seen.items()}

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the pieces of a vector by block name."""
        return dict(zip(self.sizes, torch.split(vector, list(self.sizes.values())), strict=True))

    def seen(self) -> dict[str, Tensor]:
        """Return which entries of the batch blocks have been in any batch."""
        return self._constraints.seen_entries([block.name for block in self.batch])

    def violations(
        self, vector: Tensor, seen: Mapping[str, Tensor] | None = None
    ) -> dict[str, Violation]:
        """Return the violation by block name, given or finding out which entries were seen."""
        blocks, masks = self._constraints.blocks, self.seen() if seen is None else seen
        pieces = self.split(vector).items()
        return {name: blocks[name].violation(v, masks.get(name)) for name, v in pieces}

    def not_finite(self, vector: Tensor) -> str:
        """Return the name of the first block with an entry that is not finite."""
        return next(n for n, v in self.split(vector).items() if not math.isfinite(norm(v)))

    def __getstate__(self) -> dict[str, Any]:
        # The functions of a copy may still use the old model, so its blocks are verified again.
        return {**self.__dict__, "verified": False}
