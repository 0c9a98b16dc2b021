"""The progress bar of the experiments: a label and how many of the items are done."""

import sys
from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
WIDTH = 20


class CountingBar:
    """A bar on the standard error.

    Args:
        label: what is counted.
        total: number of items.
        unit: their name, in the plural.
    """

    def __init__(self, label: str, total: int, unit: str) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.count = 0

    def show(self, count: int, end: str = "\n") -> None:
        """Draw the bar; with end="" the next one is drawn over it."""
        self.count = count
        done = WIDTH * count // max(self.total, 1)
        bar = "#" * done + "." * (WIDTH - done)
        line = f"{self.label} [{bar}] {count} of {self.total} {self.unit}"
        print(line, end=end or "\r", file=sys.stderr, flush=True)


def track(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Yield the items with a bar, which is drawn on terminals only.

    Args:
        items: to iterate over.
        label: what they are.
        total: how many there are; None for the length of `items`.
    """
    if not sys.stderr.isatty():
        yield from items
        return
    if total is None:
        total = len(items) if isinstance(items, Collection) else 0
    bar = CountingBar(label, total, "done")
    bar.show(0, end="")
    for count, item in enumerate(items, 1):
        yield item
        bar.show(count, end="" if count < total else "\n")
