"""Monitor: what an optimizer tells about its training: history and signals."""

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from torch_powalm.functional import norm
from torch_powalm.result import DualRecord
from torch_powalm.training.history import History
from torch_powalm.training.signals import Signals
from torch_powalm.training.update_reading import UpdateReading

if TYPE_CHECKING:
    from torch_powalm.training.optimizer import PowerALMOptimizer

_RECORDED = 1000  # multipliers that the history holds at every update; not of more


class Monitor:
    """Follows the updates of one optimizer; nothing here changes the training."""

    def __init__(self, optimizer: "PowerALMOptimizer") -> None:
        # Not the optimizer itself: Fabric and Lightning copy its attributes.
        self.constraints, self.blocks = optimizer.constraints, optimizer.blocks
        self.dual, self.units = optimizer.dual, optimizer.units
        self.history = History(optimizer.epoch)
        self.signals = Signals(
            self.blocks,
            self.dual,
            self.units,
            optimizer.epoch,
            optimizer.schedule,
            optimizer.gradient.window,
            optimizer.base,
        )

    def after_update(self, record: DualRecord, reading: UpdateReading) -> DualRecord:
        """Return the record of an update with its signals, and add it to the history.

        Args:
            record: the update.
            reading: what it saw.
        """
        blocks = self.blocks
        multipliers, entries, weights = {}, {}, {}
        if record.k < self.dual.k:  # not skipped
            if blocks.sizes:
                record = replace(record, signals=self.signals.judge(record.k, reading))
            multipliers = {name: norm(y) for name, y in blocks.split(self.dual.y).items()}
            if len(self.dual.y) <= _RECORDED:
                entries = self._by_block(self.dual.y)
                w = reading.weight
                weights = {} if w is None or not w.isfinite().all() else self._by_block(w)
        self.history.add(record, multipliers, entries, weights)
        return record

    def _by_block(self, vector: Tensor) -> dict[str, tuple[float, ...]]:
        pieces = self.blocks.split(vector.cpu())
        return {name: tuple(piece.tolist()) for name, piece in pieces.items()}
