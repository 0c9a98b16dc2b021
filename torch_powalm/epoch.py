"""Epoch: what has happened since the last multiplier update, and when the next one is due."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_powalm.batch import Tallies, Window
from torch_powalm.constraints import ConstraintRegistry
from torch_powalm.vector import BlockVector

_MEMORY = 0.9  # of the running norm of the augmented gradient


@dataclass
class Epoch:
    """Counters of one optimizer, and the sums of its batch blocks, which the registry holds."""

    constraints: ConstraintRegistry
    steps: int = 0
    gradient_norm: float = math.inf  # running norm of the augmented gradient
    skipped: int = 0  # steps and updates left out because something was not finite, ever

    def follow(self, gradient_norm: float) -> None:
        """Let a step's gradient into the running norm."""
        past = self.gradient_norm if math.isfinite(self.gradient_norm) else gradient_norm
        self.gradient_norm = _MEMORY * past + (1 - _MEMORY) * gradient_norm

    def sums_with(self, window: Window, vector: BlockVector) -> Tallies:
        """The sums after this step, of the true values where the user gave them."""
        if not vector.batch:
            return {}
        sums, seen = self.constraints.epoch, window.reported(vector.batch)
        return {name: sums[name].plus(t) if name in sums else t for name, t in seen.items()}

    def count_step(self, sums: Tallies) -> None:
        """Take over the sums after a step."""
        self.constraints.epoch.update(sums)
        self.steps += 1

    def residual(self, vector: BlockVector, exact: Mapping[str, Tensor]) -> Tensor:
        """(A, B) at the epoch's end: now, of batch blocks the exact values or the epoch's."""
        unknown = exact.keys() - {block.name for block in vector.batch}
        if unknown:
            raise KeyError(f"update_multipliers has no batch constraint {min(unknown)!r}")
        return vector.join(
            vector.evaluate() if vector.static else None,
            self._batch_values(vector, exact) if vector.batch else None,
        )

    def begin(self, vector: BlockVector, r: Tensor, *, skipped: bool) -> None:
        """Begin a new epoch after an update by r, or after one that was left out."""
        latest = vector.split(r)
        for block in vector.batch:
            self.constraints.latest[block.name] = latest[block.name].clone()
            self.constraints.epoch.pop(block.name, None)
        self.steps, self.gradient_norm = 0, math.inf
        self.skipped += skipped

    def is_due(
        self,
        steps: int | None,
        epochs: int | None,
        steps_per_epoch: int,
        lam: float | None,
        beta: float,
    ) -> bool:
        """Whether an update is due, by exactly one of the rules `steps`, `epochs` and `lam`."""
        if [steps, epochs, lam].count(None) != 2:
            raise ValueError(
                "should_update takes exactly one of steps, epochs and lam, "
                f"got {steps!r}, {epochs!r} and {lam!r}"
            )
        if lam is not None:
            if not lam > 0:
                raise ValueError(f"lam must be positive, got {lam!r}")
            return self.gradient_norm <= lam / beta
        for name, every in (
            ("steps", steps),
            ("epochs", epochs),
            ("steps_per_epoch", steps_per_epoch),
        ):
            if every is not None and every < 1:
                raise ValueError(f"{name} must be at least 1, got {every!r}")
        return self.steps >= (steps if steps is not None else (epochs or 1) * steps_per_epoch)

    def _batch_values(self, vector: BlockVector, exact: Mapping[str, Tensor]) -> Tensor:
        values = []
        for block in vector.batch:
            if block.name in exact:
                values.append(block.flat(exact[block.name], block.size).detach())
            elif block.name in self.constraints.epoch:
                values.append(self.constraints.epoch[block.name].value(block))
            else:
                raise RuntimeError(
                    f"update_multipliers has seen no batch of {block.name!r} since the last update"
                )
        return torch.cat(values).to(vector.device)
