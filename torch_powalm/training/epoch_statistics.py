"""EpochStatistics: counters and gradient norm of one optimizer, and the rules for an update."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torch_powalm.checks.state_checks import check_count, check_number
from torch_powalm.training.mean_weight import MeanWeight
from torch_powalm.training.on_device.tensor_formulas import running_norm

_MEMORY = 0.9  # weight of the past in the running norm of the augmented gradient


@dataclass
class EpochStatistics:
    """Counters of one optimizer, and the running norm of its gradient.

    Args:
        steps: steps since the last update.
        gradient_norm: running norm of the augmented gradient since the last update.
        skipped: steps and updates skipped since the start because a value was not finite.
        total_steps: steps since the start.
        warm_up: number of first steps without multipliers.
        weight: mean weight of the batches since the last update; not part of a checkpoint.
    """

    steps: int = 0
    gradient_norm: float | Tensor = math.inf  # a tensor while it waits on the device
    skipped: int = 0
    total_steps: int = 0
    warm_up: int = 0
    weight: MeanWeight = field(default_factory=MeanWeight)

    def __post_init__(self) -> None:
        given = isinstance(self.warm_up, int) and not isinstance(self.warm_up, bool)
        if not given or self.warm_up < 0:
            raise ValueError(f"warm_up must be a nonnegative integer, got {self.warm_up!r}")

    @property
    def warming(self) -> bool:
        """Whether multipliers may not start yet."""
        return self.total_steps < self.warm_up

    def follow(self, gradient_norm: float | Tensor) -> bool:
        """Update the running gradient norm; return False without a change if the new one is nan."""
        past, on_device = self.gradient_norm, isinstance(gradient_norm, Tensor)
        if not on_device and math.isnan(gradient_norm):
            return False
        if on_device or isinstance(past, Tensor):
            now = torch.as_tensor(gradient_norm)
            past = past if isinstance(past, Tensor) else torch.full_like(now, past)
            self.gradient_norm = running_norm(past, now, _MEMORY)
            return True
        past = past if math.isfinite(past) else gradient_norm
        self.gradient_norm = _MEMORY * past + (1 - _MEMORY) * gradient_norm
        return True

    def count_step(self, batches: int) -> None:
        """Count a step, and the calls of `augment` in it."""
        self.steps += 1
        self.total_steps += 1
        self.weight.count(batches)

    def count_skipped(self) -> None:
        """Count a skipped step or update."""
        self.skipped += 1

    def leave_out(self, steps: int) -> None:
        """Count steps that turn out to have been skipped."""
        self.skipped += steps
        self.steps, self.total_steps = self.steps - steps, self.total_steps - steps

    def is_due(
        self,
        steps: int | None,
        epochs: int | None,
        steps_per_epoch: int,
        lam: float | None,
        inverse_penalty: float,
    ) -> bool:
        """Whether an update is due under exactly one of the rules `steps`, `epochs` and `lam`.

        The rule `lam` compares the gradient norm with lam times `inverse_penalty`, which is 1/β in
        the user's units.
        """
        if [steps, epochs, lam].count(None) != 2:
            raise ValueError(
                "should_update takes exactly one of steps, epochs and lam, "
                f"got {steps!r}, {epochs!r} and {lam!r}"
            )
        if lam is not None:
            if not lam > 0:
                raise ValueError(f"lam must be positive, got {lam!r}")
            return float(self.gradient_norm) <= lam * inverse_penalty
        counts = {"steps": steps, "epochs": epochs, "steps_per_epoch": steps_per_epoch}
        for name, every in counts.items():
            if every is not None and every < 1:
                raise ValueError(f"{name} must be at least 1, got {every!r}")
        return self.steps >= (steps if steps is not None else (epochs or 1) * steps_per_epoch)

    def restart(self) -> None:
        """Start a new epoch after a multiplier update."""
        self.steps, past = 0, self.gradient_norm
        # A number would make torch.compile trace the next step anew.
        if isinstance(past, Tensor):
            self.gradient_norm = torch.full_like(past, math.inf)
        else:
            self.gradient_norm = math.inf

    @staticmethod
    def checked_state(state: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return the counters of a saved state; raise if one is out of range."""
        found: dict[str, Any] = {
            name: check_count(state[name], f"{where}[{name!r}]")
            for name in ("steps", "skipped", "total_steps")
        }
        if found["steps"] > found["total_steps"]:
            raise ValueError(
                f"{where}['steps'] must be at most 'total_steps', "
                f"got {found['steps']} and {found['total_steps']}"
            )
        place = f"{where}['gradient_norm']"
        norm = check_number(state["gradient_norm"], place, low=0, infinite=True)
        return {**found, "gradient_norm": norm}

    def restore(self, steps: int, gradient_norm: float, skipped: int, total_steps: int) -> None:
        """Continue from saved values."""
        self.steps, self.gradient_norm, self.skipped = steps, gradient_norm, skipped
        self.total_steps = total_steps
