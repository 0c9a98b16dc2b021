"""Atomic text and CSV files: a reader sees the old file or the complete new one, never a part."""

import csv
import gzip
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Any

_SUFFIX = ".part"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which it replaces if the block succeeds.

    It is in a folder of its own, on which this process holds a lock: a folder that nobody holds was
    left by a kill, and the next writer removes it.
    """
    if path.exists() and not path.is_file():  # /dev/null would become a file
        raise ValueError(f"path must be a regular file, got {path}")
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_left_over(path.parent)
    folder, descriptor = _create(path)
    try:
        temporary = folder / f"part{path.suffix}"
        yield temporary
        os.replace(temporary, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _create(path: Path) -> tuple[Path, int]:
    """Create a folder beside a file; return it with the descriptor of its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(_SUFFIX, f".{path.name}-", path.parent))
        # Another writer may take it for left over before it is locked, and remove it.
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY)
            if lock(descriptor) is not False and folder.exists():
                return folder, descriptor
            os.close(descriptor)


def lock(descriptor: int) -> bool | None:
    """Take the lock of an open file until it is closed; return whether this process holds it now.

    None on a file system without locks.
    """
    try:
        flock(descriptor, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def remove_left_over(folder: Path, pattern: str = f".*-*{_SUFFIX}") -> None:
    """Remove temporary folders or files that no living process holds a lock on."""
    for part in folder.glob(pattern):
        if pattern.endswith(_SUFFIX) and not _is_ours(part):
            continue
        with suppress(OSError):  # gone by now
            descriptor = os.open(part, os.O_RDONLY)
            if lock(descriptor):
                shutil.rmtree(part) if part.is_dir() else part.unlink()
            os.close(descriptor)


def _is_ours(part: Path) -> bool:
    """Whether a folder may be one of `replacing`: it holds at most the one file that it writes."""
    try:
        return part.is_dir() and all(p.stem == "part" for p in part.iterdir())
    except OSError:
        return False


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


def write_beside(
    path: Path, rows: list[dict[str, str]], own: Callable[[dict[str, str]], bool]
) -> None:
    """Write rows into a table in place of those that are their own; the others stay."""
    others = [row for row in read_csv(path) if not own(row)] if path.exists() else []
    write_csv(path, others + rows)


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
