"""Prices: what one unit of each bound costs in loss, with the range of the last updates.

At a stationary point the loss falls by w for a unit of a constraint, where w = y + β∇φ is what
multiplies its gradient. Without noise, w is the multiplier that an update ends with. With batches,
the penalty may pull where y is 0: some batches are above the bound, and a smooth proxy may always
be. So the mean of w over the steps since the last update is recorded.
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from torch_powalm.training.history import HistoryRow

UPDATES = 10  # over which prices are taken


class Price(NamedTuple):
    """Price of the bound of one entry: one unit less of it costs about this much loss.

    Args:
        entry: index of the entry.
        value: mean of its multiplier over the last updates; with constraints of the batch, of the
            weight that its gradient had in the steps before these updates.
        low: smallest of these numbers.
        high: largest of these numbers.
    """

    entry: int
    value: float
    low: float
    high: float


def prices(rows: Sequence[HistoryRow], last: int) -> dict[str, list[Price]]:
    """Return the prices of all entries by block, over the last updates."""
    if not (isinstance(last, int) and last >= 1):
        raise ValueError(f"last must be a positive integer, got {last!r}")
    entries = [row.weights or row.entries for row in rows if row.entries][-last:]
    found: dict[str, list[Price]] = {}
    for name in entries[-1] if entries else ():
        columns = zip(*(row[name] for row in entries), strict=True)
        found[name] = [
            Price(i, statistics.fmean(column), min(column), max(column))
            for i, column in enumerate(columns)
        ]
    return found
