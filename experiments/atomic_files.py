"""Atomic text and CSV files: a reader sees the old file or the complete new one, never a part."""

import csv
import gzip
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; it replaces `path` if the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file."""
    with replacing(path) as temporary:
        temporary.write_text(text)


def write_csv(
    path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None
) -> None:
    """Write a CSV, compressed if its name ends in .gz; equal rows give equal bytes.

    Args:
        path: the file.
        rows: the rows by column.
        columns: the columns to write; None for those of the first row.
    """
    text = io.StringIO()
    names = list(rows[0]) if columns is None else columns
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    content = text.getvalue().encode()
    with replacing(path) as temporary:
        # Without a time stamp, so that a rewritten table shows no difference in git.
        temporary.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def read_csv(path: Path, rows: int | None = None) -> list[dict[str, str]]:
    """Read the rows of a CSV, compressed or not.

    Args:
        path: the file.
        rows: of a longer table, keep this many evenly spaced rows or up to twice as many, and the
            last one; None for all rows.
    """
    opened = gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="")
    found: list[dict[str, str]] = []
    stride, row = 1, None
    with opened as file:
        for i, row in enumerate(csv.DictReader(file)):
            if i % stride == 0:
                found.append(row)
            if rows is not None and len(found) > 2 * rows:
                found, stride = found[::2], 2 * stride
    if row is not None and found[-1] is not row:
        found.append(row)
    return found
