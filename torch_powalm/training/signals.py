"""Signals: warnings about a training whose constraints will not be met as it is set up.

Each kind of warning comes at most once per run, and names the blocks; every record of an update
lists the signals that hold at that update. The checks run at multiplier updates, on the residuals
and multipliers that the update has computed anyway. They are not part of a checkpoint.
"""

import math
import warnings
from collections import deque
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_powalm.dual import DualState
from torch_powalm.functional import violation
from torch_powalm.result import ConstraintWarning
from torch_powalm.training.automatic_units import AutomaticUnits
from torch_powalm.training.batch_window import BatchWindow
from torch_powalm.training.block_vector import BlockVector
from torch_powalm.training.epoch_statistics import EpochStatistics
from torch_powalm.training.integral_gain import STRONG
from torch_powalm.training.unit_scales import MOVE
from torch_powalm.training.update_reading import UpdateReading
from torch_powalm.training.update_schedule import MEASURING, UpdateSchedule
from torch_powalm.training.update_window import STREAK, UpdateWindow

IDLE = 2000  # steps without an update
FEW = 10  # updates in a run
REPEATS = 10  # consecutive steps with an unused result of augment()
UNUSED = 100  # results of augment() waiting for backward()

_WEAK = 0.01  # pull of a block relative to the whole gradient
_CANCEL = 0.5  # whole gradient relative to the pulls of blocks that cancel each other
_BRISK = 0.5  # learning rate at which a violation must fall, relative to the largest so far
_DRAWS = 3  # random vectors in a measurement of a block's sensitivity
_RELATIVE, _ABSOLUTE = 0.01, 1e-3  # default tolerance, with and without measured units

_MESSAGES = {
    "conflicting": "constraints in {} contradict each other: their multipliers grow, but the "
    "violation does not fall; relax or remove one of them",
    "weak": "constraints {} stay violated, and their pull is far below that of the loss; raise "
    "beta_1 or leave it out, and check that they depend on the trained parameters",
    "oscillating": "constraints {} oscillate around their bounds without damping; lower the "
    "learning rate or update the multipliers less often",
    "idle": "the multipliers of {} have not moved for {} steps; call update_multipliers() at the "
    "end of each epoch, or set updates='auto'",
    "few": "the multipliers of {} move fewer than {} times in a run of {} steps; train longer or "
    "update more often",
    "unused": "augment() was called for {} without backward() on its result; call it once per "
    "backward(), and under torch.no_grad() or not at all in validation",
}


class Signals:
    """Checks of one optimizer, and the warnings it has given.

    Attributes:
        conflicting: blocks that contradict each other as of the last update.
    """

    def __init__(
        self,
        blocks: BlockVector,
        dual: DualState,
        units: AutomaticUnits,
        epoch: EpochStatistics,
        schedule: UpdateSchedule,
        calls: BatchWindow,
        base: Optimizer,
    ) -> None:
        self._blocks, self._dual, self._units = blocks, dual, units
        self._epoch, self._schedule, self._calls = epoch, schedule, calls
        self._base, self._lr = base, deque[float](maxlen=STREAK)  # lr at the last updates
        self._lr_max = 0.0
        self.conflicting: tuple[str, ...] = ()
        self._told: set[str] = set()
        self._pending: list[str] = []  # signals between two updates
        self._window: UpdateWindow | None = None
        self._k = 0  # index of the last update
        self._measured: dict[str, tuple[int, float]] = {}  # update and J_b, without automatic units
        self._repeats = 0  # consecutive steps with an unused result of augment()
        self._patience = IDLE  # steps without an update before a signal
        self._managed = False  # whether a callback decides when to update

    def after_augment(self) -> None:
        """Warn if results of augment() pile up unused."""
        if self._calls.waiting >= UNUSED:
            self._once("unused", self._batch_names())

    def after_step(self, managed: bool) -> None:
        """Warn about calls and updates that are missing, before the calls of a step are cleared.

        Args:
            managed: whether a callback decides when to update.
        """
        if torch.compiler.is_compiling():
            return
        epoch, schedule, self._managed = self._epoch, self._schedule, managed
        self._repeats = self._repeats + 1 if self._calls.waiting else 0
        if self._repeats == REPEATS:
            self._once("unused", self._batch_names())
        by_hand, total = schedule.updates == "epoch", schedule.total_steps
        patience = self._patience
        if total is not None and self._dual.k == 1:  # no update in the first half of the run
            patience = min(patience, max(MEASURING, total // 2))
        if by_hand and not managed and epoch.steps == patience:
            self._once("idle", self._blocks.names, epoch.steps)
        if total is None or epoch.total_steps not in (1, total):
            return
        planned = total // schedule.interval(0)
        if epoch.total_steps == total and by_hand:
            planned = self._dual.k  # the update at the end of the last epoch is still to come
        if planned < FEW and (epoch.total_steps == total or not by_hand):
            self._once("few", self._blocks.names, FEW, total)

    def before_report(self) -> None:
        """Warn if a report is asked for in a run whose multipliers have never been asked to move.

        Who asks has finished an epoch. Without this a run of less than IDLE steps would end in
        silence, since nothing else tells where an epoch ends.
        """
        epoch = self._epoch
        by_hand = self._schedule.updates == "epoch" and not self._managed
        if by_hand and self._dual.k == 1 and epoch.total_steps > MEASURING:
            self._once("idle", self._blocks.names, epoch.steps)

    def report(self, signal: str) -> None:
        """Add a signal to the next record."""
        self._pending.append(signal)

    def judge(self, k: int, reading: UpdateReading) -> tuple[str, ...]:
        """Return the signals at an update from what it has read, after y has moved."""
        r = reading.r
        found, self._pending = self._pending, []
        self._patience = max(IDLE, 3 * self._epoch.steps)
        if self._window is None or k != self._k + 1:  # the first update, or a loaded state
            self._window = UpdateWindow(self._blocks.sizes, self._blocks.inequality)
            self._measured = {}
        self._k = k
        self._lr.append(reading.rate)
        self._lr_max = max(self._lr_max, self._lr[-1])
        self._window.add(r, violation(r, self._blocks.inequality), self._dual.y, reading.x)
        tolerances = self.default_tolerances()
        lasting = [n for n, bound in tolerances.items() if self._window.is_lasting(n, bound)]
        self.conflicting = self._conflicts(self._window, tolerances, lasting, r)
        total = self._epoch.gradient_norm
        weak = [n for n in lasting if self._pull(n, r) < _WEAK * total < math.inf]
        swings = [n for n, b in tolerances.items() if self._window.oscillates(n, self._swing(n, b))]
        kinds = {"conflicting": self.conflicting, "weak": weak, "oscillating": swings}
        for kind, names in kinds.items():
            if names:
                self._once(kind, names)
                found.append(f"{kind}: {', '.join(names)}")
        self._pending = []
        return tuple(found)

    def default_tolerances(self) -> dict[str, float]:
        """Return by block 1 % of J_b δ_b if its units were measured, else 1e-3."""
        if self._units.measuring:
            return dict.fromkeys(self._blocks.sizes, _ABSOLUTE)
        return {n: _RELATIVE * self._units.reach(n) or _ABSOLUTE for n in self._blocks.sizes}

    def default_of_indexed(self, name: str, size: int) -> float:
        """Return the default tolerance of an indexed block, whose J_b is √n times its mean's."""
        known = self._units.steps and not self._units.measuring
        return (_RELATIVE * self._units.reach(name) / math.sqrt(size) if known else 0) or _ABSOLUTE

    def _conflicts(
        self, window: UpdateWindow, tolerances: dict[str, float], lasting: list[str], r: Tensor
    ) -> tuple[str, ...]:
        """Return the blocks that stay violated and pull so strongly that the loss cannot resist.

        The verdict stands as long as they are violated and their multipliers grow.
        """
        masks = {n: window.is_pushed(n, bound) for n, bound in tolerances.items()}
        pushed = {name: mask for name, mask in masks.items() if bool(mask.any())}
        before = tuple(name for name in self.conflicting if name in pushed)
        if min(self._lr) < _BRISK * self._lr_max:  # too slow to show anything new
            return before
        stuck = {n: masks[n] & window.has_not_fallen(n) for n in lasting}
        stuck = {name: mask for name, mask in stuck.items() if bool(mask.any())}
        if sum(int(mask.sum()) for mask in stuck.values()) < 2:
            return before
        if self._units.steps:
            pulls = {name: self._pull(name, r) for name in pushed}
            held = all(pulls[n] > STRONG * self._units.loss_pull(n) for n in stuck)
            cancel = float(self._epoch.gradient_norm) < _CANCEL * sum(pulls.values())
            held &= cancel or window.move() >= MOVE  # else the steps are too short to tell
        else:  # the pull of the loss is not known: wait for more evidence
            held = window.is_at_rest(stuck)
        return tuple(pushed) if held else before

    def _swing(self, name: str, tolerance: float) -> float:
        """Return the largest oscillation that is normal: what the base removes in a few steps."""
        units = self._units
        removed = units.sensitivity(name) * units.move(name) if units.steps else 0.0
        return max(tolerance, removed)

    def _pull(self, name: str, r: Tensor) -> float:
        """Return the length of a block's part of the gradient, ‖w_b‖J_b; inf if not known."""
        w = self._dual.weight(r)
        if w is None:
            return math.inf
        w_norm = float(torch.linalg.vector_norm(self._blocks.split(w)[name]))
        return w_norm * self._sensitivity(name) if w_norm > 0 else 0.0

    def _sensitivity(self, name: str) -> float:
        """Return J_b as measured, or measured now for a function of the parameters."""
        if self._units.steps:
            return self._units.sensitivity(name)
        if self._blocks.sharded or name not in {block.name for block in self._blocks.static}:
            return math.inf
        k, known = self._measured.get(name, (-STREAK, math.inf))
        if self._k - k < STREAK:
            return known
        units = AutomaticUnits(_DRAWS, 1.0, False)
        with torch.enable_grad():
            value = {name: self._blocks.static_values()[name]}
            for _ in range(_DRAWS):
                units.measure_blocks(self._blocks, value, None)
        self._measured[name] = self._k, max(units.change[name])
        return self._measured[name][1]

    def _batch_names(self) -> list[str]:
        return [block.name for block in self._blocks.batch]

    def _once(self, kind: str, names: Iterable[str], *details: object) -> None:
        """Warn unless this kind of warning has been given, and keep it for the next record."""
        if kind in self._told:
            return
        self._told.add(kind)
        self._pending.append(f"{kind}: {', '.join(names)}")
        quoted = ", ".join(repr(name) for name in names)
        warnings.warn(_MESSAGES[kind].format(quoted, *details), ConstraintWarning, stacklevel=6)
