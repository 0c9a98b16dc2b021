"""Checkpoint files that survive a kill: written atomically, checked before they are read.

torch.load silently reads a damaged file if the damage is inside a tensor. The functions below check
every byte against the checksums that torch.save stores in the file. The folder of a sharded
strategy (torch.distributed.checkpoint) consists of such pieces.
"""

import io
import os
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any

import torch


def save_checkpoint(state: Any, path: str | os.PathLike[str]) -> None:
    """Save like torch.save, but atomically: a kill leaves the previous file or the new one."""
    path = Path(path)
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def load_checkpoint(path: str | os.PathLike[str]) -> Any:
    """Load with weights_only=True; raise with the name of the file if it is damaged."""
    check_checkpoint(path)
    return torch.load(path, weights_only=True)


def check_checkpoint(path: str | os.PathLike[str], part: int = 0, parts: int = 1) -> None:
    """Raise if a file, or a folder of a sharded strategy, is not a complete checkpoint.

    Args:
        path: the file or the folder.
        part: which part of a folder's files to check; ranks can share the work.
        parts: the number of parts.
    """
    path = Path(path)
    if not path.is_dir():
        _check_piece(path, path)
        return
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    pieces: dict[str, list[Any]] = {}
    try:
        for piece in FileSystemReader(path).read_metadata().storage_data.values():
            pieces.setdefault(piece.relative_path, []).append(piece)
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(
            f"corrupted or incomplete checkpoint: {path}/.metadata ({error})"
        ) from error
    for name in sorted(pieces)[part::parts]:
        try:
            with (path / name).open("rb") as file:
                for piece in pieces[name]:
                    file.seek(piece.offset)
                    _check_piece(io.BytesIO(file.read(piece.length)), path / name)
        except FileNotFoundError as error:
            raise ValueError(
                f"corrupted or incomplete checkpoint: {path} ({name} is missing)"
            ) from error


def _check_piece(content: Path | IO[bytes], path: Path) -> None:
    try:
        with zipfile.ZipFile(content) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, EOFError) as error:
        raise _damage(f"{path} ({error})") from error
    if damaged is not None:
        raise _damage(f"{path} (damaged in {damaged})")


def _damage(where: str) -> ValueError:
    return ValueError(f"corrupted or incomplete checkpoint: {where}")


def last_checkpoint(folder: str | os.PathLike[str], pattern: str = "*.ckpt") -> Path | None:
    """Return the newest complete checkpoint of a folder, or None; warn about damaged newer ones."""
    newest_first = sorted(Path(folder).glob(pattern), key=lambda p: p.stat().st_mtime_ns)[::-1]
    for path in newest_first:
        try:
            check_checkpoint(path)
        except ValueError as error:
            warnings.warn(f"{error}; trying the previous one", stacklevel=2)
        else:
            return path
    return None
