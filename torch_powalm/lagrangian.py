"""Lagrangian: L_β(x, y) of one training, from the blocks to the weight of their Jacobian.

    L_β(x, y) = loss(x) + ⟨y, A(x)⟩ + βφ(A(x)),     ∇L_β = ∇loss + J_Aᵀ w,     w = y + β∇φ(A)

x is what the base trains, A the blocks that the optimizer owns, y and β are the dual state's.
"""

import dataclasses
import math
from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer

from torch_powalm import sharding
from torch_powalm.constraints import ConstraintRegistry
from torch_powalm.dual import DualState
from torch_powalm.functional import norm
from torch_powalm.result import DualRecord
from torch_powalm.vector import BlockVector


class Lagrangian:
    """The blocks of one optimizer as a vector r = (A, B), and the weight w at r.

    What changes in training is here, in Epoch and in AugmentedGradient, and not in attributes of
    the optimizer: Fabric and Lightning work on a copy of those.

    Args:
        base: the optimizer of x.
        constraints: the registry of the blocks.
        dual: y and β.
        coupling: "all" (one norm over all blocks) or "block" (one each).
        owns: names of the blocks; None for all.
        on_nonfinite: "raise" or "skip" what is not finite.
    """

    def __init__(
        self,
        base: Optimizer,
        constraints: ConstraintRegistry,
        dual: DualState,
        coupling: str,
        owns: Sequence[str] | None,
        on_nonfinite: str,
    ) -> None:
        if not isinstance(constraints, ConstraintRegistry):
            raise TypeError(
                f"constraints must be a ConstraintRegistry, got {type(constraints).__name__}"
            )
        if coupling not in ("all", "block"):
            raise ValueError(f"coupling must be 'all' or 'block', got {coupling!r}")
        if on_nonfinite not in ("raise", "skip"):
            raise ValueError(f"on_nonfinite must be 'raise' or 'skip', got {on_nonfinite!r}")
        if isinstance(owns, str):
            raise TypeError(f"owns must be a sequence of names, got {owns!r}")
        self.base, self.constraints, self.dual = base, constraints, dual
        self.coupling, self.on_nonfinite = coupling, on_nonfinite
        self.owns = None if owns is None else list(owns)
        self._vector: BlockVector | None = None
        self._claim = object()

    @property
    def params(self) -> list[Tensor]:
        """x: all parameters of all groups."""
        return [p for group in self.base.param_groups for p in group["params"]]

    @property
    def names(self) -> list[str]:
        """Names of the blocks."""
        return list(self.constraints.blocks) if self.owns is None else self.owns

    def ready(self) -> BlockVector:
        """The blocks as a vector, made at first use: the model is then where it is trained."""
        if self._vector is None:
            self._vector = self._claimed()
        self.constraints.check_owner(self._vector.names, self._claim)
        return self._vector

    def weight(self, r: Tensor) -> Tensor | None:
        """The weight at r, or None under on_nonfinite="skip"."""
        if not self.dual.started:
            if not self.is_finite(r):
                return None
            self._start(r)
        w = self.dual.weight(r)
        if w is None:
            self.is_finite(r)
        return w

    def is_finite(self, r: Tensor) -> bool:
        """Whether r is finite; under on_nonfinite="raise" it is, or this raises."""
        if math.isfinite(norm(r)):
            return True
        if self.on_nonfinite == "raise":
            raise FloatingPointError(
                f"constraint {self.ready().not_finite(r)!r} must be finite, got nan or inf"
            )
        return False

    def update(self, r: Tensor) -> DualRecord:
        """Move y and β by r, or nothing when r is not finite: the record then says nan."""
        dual, violations = self.dual, self.ready().violations(r)
        if not self.is_finite(r):
            return DualRecord(dual.k, math.nan, dual.beta, 0.0, norm(dual.y), violations)
        if not dual.started:
            self._start(r)
        return dataclasses.replace(dual.update(r), violations=violations)

    def groups(self) -> list[slice] | None:
        """The parts of r that have a norm of their own; None for one norm of all."""
        return self.ready().slices() if self.coupling == "block" else None

    def _start(self, r: Tensor) -> None:
        self.dual.start(r, self.ready().inequality, self.groups())

    def _claimed(self) -> BlockVector:
        blocks, names, params = self.constraints.blocks, self.names, self.params
        for name in names:
            if name not in blocks:
                raise KeyError(f"owns has no registered constraint {name!r}")
        if not names:
            raise ValueError("constraints must have at least one block, got none")
        _check_params(params)
        sharded = any(sharding.is_sharded(p) for p in params)
        vector = BlockVector([blocks[name] for name in names], params[0].device, sharded)
        self.constraints.claim(names, self._claim)
        return vector


def _check_params(params: Sequence[Tensor]) -> None:
    devices = sorted({str(p.device) for p in params})
    if len(devices) > 1:
        raise ValueError(f"parameters must be on one device, got {', '.join(devices)}")
    if any(getattr(p, "_fsdp_flattened", False) for p in params):
        raise ValueError(
            "parameters must not be flattened by FullyShardedDataParallel (a constraint would see "
            "one rank's piece), got a flat parameter; use torch.distributed.fsdp.fully_shard"
        )
