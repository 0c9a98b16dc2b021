"""UpdateSchedule: when multipliers move, and how far a run has come."""

import math

UPDATES = 40  # in a run of known length
FEW = 10  # fewest steps between updates in such a run: the memory of a base with momentum 0.9
MANY = 20  # steps after which an update never comes too soon
SHARE = 20  # without a known length, an update comes after 1/SHARE of the steps so far
LONG = 500  # without a known length, a run counts as nearly done after this many steps
MEASURING = 20  # first steps, which measure the units


class UpdateSchedule:
    """Decides after every step whether an update is due.

    Args:
        updates: "auto", "epoch" (only where the user asks for one), or a number of steps.
        total_steps: length of the run, if known.
        searches: whether a step of the base is a search of many iterations (LBFGS), after which an
            automatic update never comes too soon.
    """

    def __init__(self, updates: str | int, total_steps: int | None, searches: bool = False) -> None:
        given = isinstance(updates, int) and not isinstance(updates, bool) and updates >= 1
        if updates not in ("auto", "epoch") and not given:
            raise ValueError(
                f"updates must be 'auto', 'epoch' or a positive integer, got {updates!r}"
            )
        self.updates, self.searches = updates, searches
        self.total_steps: int | None = None
        self.set_length(total_steps)

    def set_length(self, total_steps: int | None, manual: bool = False) -> None:
        """Set the length of the run, None if not known; `manual` ends automatic updates."""
        given = isinstance(total_steps, int) and not isinstance(total_steps, bool)
        if total_steps is not None and not (given and total_steps >= 1):
            raise ValueError(f"total_steps must be None or a positive integer, got {total_steps!r}")
        self.total_steps = total_steps
        if manual:
            self.updates = "epoch"

    def set_searches(self, searches: bool) -> None:
        """Continue with another base."""
        self.searches = searches

    @property
    def measuring_steps(self) -> int:
        """Number of first steps that measure the units: at most a tenth of the run."""
        if self.searches:
            return 1
        if self.total_steps is None:
            return MEASURING
        return max(1, min(MEASURING, self.total_steps // 10))

    def interval(self, steps_done: int) -> int:
        """Return the number of steps between updates at this point of the run."""
        if isinstance(self.updates, int):
            return self.updates
        if self.searches:
            return 1
        if self.total_steps is not None:
            return max(FEW, self.total_steps // UPDATES)
        return max(MANY, steps_done // SHARE)

    def is_due(self, steps: int, steps_done: int) -> bool:
        """Whether an update is due inside of `step`, this many steps after the last one."""
        return self.updates != "epoch" and steps >= self.interval(steps_done)

    def is_too_soon(self, steps: int, steps_done: int) -> bool:
        """Whether an update that the user asks for would come too soon after the last one."""
        if self.updates == "auto":
            return steps < min(MANY, self.interval(steps_done))
        return self.updates != "epoch" and steps == 0 < steps_done

    def left(self, steps_done: int) -> int:
        """Return the number of steps left; as many as are done where the length is not known."""
        return steps_done if self.total_steps is None else max(0, self.total_steps - steps_done)

    def progress(self, steps_done: int) -> float:
        """Return the part of the run that is done; a guess where its length is not known."""
        if self.total_steps is not None:
            return min(1.0, steps_done / self.total_steps)
        past = max(1.0, steps_done if self.searches else steps_done / MEASURING)
        return min(1.0, math.log(past) / math.log(LONG / MEASURING))
