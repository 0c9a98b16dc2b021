"""Budget: gradient calls and seconds that a run has spent, and whether any are left."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from torch_powalm.solving.oracle import Calls
from torch_powalm.solving.settings import Limits


class BudgetUsedUpError(Exception):
    """Ends the step of a run that goes on although its budget is used up."""


@dataclass
class Budget:
    """Gradient calls and seconds of one run.

    Args:
        calls: counters of the oracle, which may already be running.
        limits: bounds on gradient calls and seconds.
    """

    calls: Calls
    limits: Limits
    start: float = field(default_factory=lambda: time.perf_counter())
    first: Calls = field(init=False)  # the counters at the start
    noticed: bool = False  # whether the run knows that nothing is left

    def __post_init__(self) -> None:
        self.first = replace(self.calls)

    @property
    def spent(self) -> Calls:
        """Calls since the start."""
        now, first = self.calls, self.first
        return Calls(
            now.function - first.function,
            now.gradient - first.gradient,
            now.constraint - first.constraint,
        )

    @property
    def seconds(self) -> float:
        """Wall time since the start."""
        return time.perf_counter() - self.start

    def check(self) -> None:
        """Raise BudgetUsedUpError, once, unless `used_up` has already told it."""
        if not self.noticed and self.used_up():
            raise BudgetUsedUpError

    def used_up(self) -> bool:
        """Whether no gradient calls or no seconds are left."""
        self.noticed = self.noticed or self._is_over()
        return self.noticed

    def _is_over(self) -> bool:
        max_gradients, max_seconds = self.limits.max_gradients, self.limits.max_seconds
        if max_gradients is not None:
            if self.calls.gradient - self.first.gradient >= max_gradients:
                return True
        return max_seconds is not None and self.seconds >= max_seconds
