"""Checkpoint files that survive a kill: written in one piece, checked before they are read.

torch.load reads a damaged file without a word when the damage is inside a tensor; here every byte
is checked against the sums that torch.save has written beside it. The folder that a sharded
strategy writes (torch.distributed.checkpoint) is made of such pieces.
"""

import io
import os
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any

import torch


def save_checkpoint(state: Any, path: str | os.PathLike[str]) -> None:
    """torch.save that replaces the file at once: a kill leaves the previous one or the new one."""
    path = Path(path)
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def load_checkpoint(path: str | os.PathLike[str]) -> Any:
    """torch.load with weights_only=True of a file that is whole; a damaged one raises by name."""
    check_checkpoint(path)
    return torch.load(path, weights_only=True)


def check_checkpoint(path: str | os.PathLike[str], part: int = 0, parts: int = 1) -> None:
    """Raise when a file, or a folder of a sharded strategy, is not a whole checkpoint.

    Args:
        path: the file or the folder.
        part: of a folder, which part of its files is looked at; ranks can share the work.
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
    except Exception as error:  # whatever a damaged pickle makes of itself
        raise ValueError(f"checkpoint must be whole, got {path}/.metadata ({error})") from error
    for name in sorted(pieces)[part::parts]:
        try:
            with (path / name).open("rb") as file:
                for piece in pieces[name]:
                    file.seek(piece.offset)
                    _check_piece(io.BytesIO(file.read(piece.length)), path / name)
        except FileNotFoundError as error:
            raise ValueError(f"checkpoint must be whole, got {path} without {name}") from error


def _check_piece(content: Path | IO[bytes], path: Path) -> None:
    try:
        with zipfile.ZipFile(content) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"checkpoint must be whole, got {path} ({error})") from error
    if damaged is not None:
        raise ValueError(f"checkpoint must be whole, got {path} (damaged in {damaged})")


def last_checkpoint(folder: str | os.PathLike[str], pattern: str = "*.ckpt") -> Path | None:
    """The newest whole checkpoint of a folder, or None; warns of damaged ones that are newer."""
    newest_first = sorted(Path(folder).glob(pattern), key=lambda p: p.stat().st_mtime_ns)[::-1]
    for path in newest_first:
        try:
            check_checkpoint(path)
        except ValueError as error:
            warnings.warn(f"{error}, going back to the one before", stacklevel=2)
        else:
            return path
    return None
