"""Budget: gradient calls and seconds that a run has spent, and whether any are left."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace

from torch_powalm.solving.oracle import Calls
from torch_powalm.solving.settings import Limits

_RESERVE = 2  # evaluations for which time is kept: the last point is measured before the run ends
_GRACE = 0.05  # seconds relative to the limit by which that may exceed it


class BudgetUsedUpError(Exception):
    """Ends the step of a run that goes on although its budget is used up."""


@dataclass
class Budget:
    """Gradient calls and seconds of one run.

    A run must not exceed its seconds, so no evaluation starts that would probably end too late: it
    is expected to take as long as the slowest of the last few, with the work around it.

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
        self._last = self.start  # when the last evaluation began
        self._lasted: deque[float] = deque([0.0], maxlen=4)  # from there to the next one

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
        """Raise BudgetUsedUpError before an evaluation for which nothing is left.

        A run that knows it, by this or by `used_up`, may still measure its last point if time is
        left for that.
        """
        now = time.perf_counter()
        self._lasted.append(now - self._last)
        self._last = now
        if not self.noticed:
            if self.used_up():
                raise BudgetUsedUpError
        elif self.limits.max_seconds is not None:
            if self.seconds + max(self._lasted) > (1 + _GRACE) * self.limits.max_seconds:
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
        if max_seconds is None:
            return False
        return self.seconds + _RESERVE * max(self._lasted) >= max_seconds
