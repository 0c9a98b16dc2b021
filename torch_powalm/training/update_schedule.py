"""UpdateSchedule: when multipliers move."""

import math

from torch_powalm.result import DualRecord

FEW = 5  # fewest steps between two updates: the base must be able to follow
MANY = 20  # an update is never too soon after this many steps
UPDATES = 40  # in a run of known length
STEPS, LONG = 20, 2000
SHARE = 20  # without a known length, an update after this part of the steps so far


class UpdateSchedule:
    """Decides after every step whether an update is due.

    Args:
        updates: "auto", "epoch" (only where the user asks for one), or a number of steps.
        total_steps: length of the run, if known.
    """

    def __init__(self, updates: str | int, total_steps: int | None) -> None:
        if isinstance(updates, bool) or (
            updates not in ("auto", "epoch") and not (isinstance(updates, int) and updates >= 1)
        ):
            raise ValueError(
                f"updates must be 'auto', 'epoch' or a positive integer, got {updates!r}"
            )
        if total_steps is not None and not (isinstance(total_steps, int) and total_steps >= 1):
            raise ValueError(f"total_steps must be None or a positive integer, got {total_steps!r}")
        self.updates, self.total_steps = updates, total_steps
        self.record: DualRecord | None = None  # of the last update

    def interval(self, steps_done: int) -> int:
        """Return the number of steps between updates at this point of the run."""
        if isinstance(self.updates, int):
            return self.updates
        if self.total_steps:
            return max(FEW, int(self.total_steps / UPDATES))
        return max(MANY, int(steps_done / SHARE))

    def is_due(self, steps: int, steps_done: int) -> bool:
        """Whether an update is due inside of `step`, this many steps after the last one."""
        return self.updates != "epoch" and steps >= self.interval(steps_done)

    def is_too_soon(self, steps: int, steps_done: int) -> bool:
        """Whether an update that the user asks for would come too soon after the last one."""
        return self.updates == "auto" and steps < min(MANY, self.interval(steps_done))

    def progress(self, steps_done: int) -> float:
        """Return the part of the run that is done, or a guess where its length is not known."""
        if self.total_steps:
            return min(1.0, steps_done / self.total_steps)
        return min(1.0, math.log(max(steps_done, STEPS) / STEPS) / math.log(LONG / STEPS))
