"""Checkpoint files that survive a kill: written atomically, checked before they are read."""

import os
import warnings
from pathlib import Path
from typing import Any

import torch

from torch_powalm.training.atomic_file import is_temporary, write_atomically
from torch_powalm.training.checkpoint_checks import CheckpointError, check_checkpoint, load_file


def save_checkpoint(state: Any, path: str | os.PathLike[str]) -> None:
    """Save like torch.save, but atomically: a kill leaves the previous file or the new one.

    Missing folders are created. An existing file keeps its mode and owner, and the target of a
    symbolic link is replaced, not the link. If the disk is full, OSError says so and the previous
    file stays.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: torch.save(state, file))


def load_checkpoint(path: str | os.PathLike[str]) -> Any:
    """Load with weights_only=True; raise CheckpointError with the name of the file if damaged.

    The error also comes for a file with anything that is not on torch's list of safe types.
    """
    path = Path(path)
    if path.is_dir():
        raise CheckpointError(path, "a folder; load it with torch.distributed.checkpoint")
    check_checkpoint(path)
    return load_file(path)


def last_checkpoint(folder: str | os.PathLike[str], pattern: str = "*.ckpt") -> Path | None:
    """Return the newest complete checkpoint of a folder, or None; warn about damaged newer ones."""
    for _, path in sorted(_candidates(Path(folder), pattern), reverse=True):
        try:
            check_checkpoint(path)
        except CheckpointError as error:
            warnings.warn(f"{error}; trying the previous one", stacklevel=2)
        except OSError as error:  # gone, or not ours to read
            warnings.warn(f"cannot read checkpoint: {error}; trying the previous one", stacklevel=2)
        else:
            return path
    return None


def _candidates(folder: Path, pattern: str) -> list[tuple[int, Path]]:
    """Return the files that may be checkpoints, with their times."""
    found = []
    for path in folder.glob(pattern):
        if not is_temporary(path):
            try:
                found.append((path.stat().st_mtime_ns, path))
            except OSError:  # a link to nowhere, or a file that has just been removed
                continue
    return found
