"""A progress bar for loops that take longer than a moment."""

from collections.abc import Iterable
from typing import TypeVar

from rich.progress import track as rich_track

T = TypeVar("T")


def track(items: Iterable[T], label: str, total: int | None = None) -> Iterable[T]:
    """The items, with a bar that disappears when they are done."""
    return rich_track(items, description=label, total=total, transient=True)
