"""Prices: what one unit of each bound costs in loss, with the range of the last updates."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from torch_powalm.training.history import HistoryRow


class Price(NamedTuple):
    """Price of the bound of one entry: one unit less of it costs about this much loss.

    Args:
        entry: index of the entry.
        value: median of its multiplier over the last updates.
        low: smallest multiplier over these updates.
        high: largest multiplier over these updates.
    """

    entry: int
    value: float
    low: float
    high: float


def prices(rows: Sequence[HistoryRow], last: int) -> dict[str, list[Price]]:
    """Return the prices of all entries by block, over the last updates."""
    if not (isinstance(last, int) and last >= 1):
        raise ValueError(f"last must be a positive integer, got {last!r}")
    entries = [row.entries for row in rows if row.entries][-last:]
    found: dict[str, list[Price]] = {}
    for name in entries[-1] if entries else ():
        columns = zip(*(row[name] for row in entries), strict=True)
        found[name] = [
            Price(i, statistics.median(column), min(column), max(column))
            for i, column in enumerate(columns)
        ]
    return found
