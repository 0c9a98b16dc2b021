"""Checks of checkpoint files: every byte against its checksum, and nothing unpickled that can run.

torch.load silently reads a damaged file if the damage is inside a tensor. The functions below check
every byte against the checksums that torch.save stores in the file. The folder of a sharded
strategy (torch.distributed.checkpoint) consists of such pieces, listed in a file `.metadata`. That
file is a pickle, and torch reads it with the plain unpickler, which runs whatever is in it. So it
is first read here, by an unpickler that knows only the classes that belong there.
"""

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import IO, Any

import torch

# Only these make up the metadata of a sharded checkpoint.
_METADATA = "torch.distributed.checkpoint.metadata"
_SAFE = {
    *((_METADATA, f"{kind}StorageMetadata") for kind in ("Tensor", "Bytes", "Chunk")),
    *((_METADATA, name) for name in ("Metadata", "MetadataIndex", "StorageMeta")),
    *((_METADATA, name) for name in ("TensorProperties", "_MEM_FORMAT_ENCODING")),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("collections", "OrderedDict"),
    ("pathlib", "Path"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    ("pathlib._local", "PosixPath"),  # Python 3.13
}
_EXTRA = "meta.pt"  # where Lightning keeps what is not a tensor
_FLAGS = 0x808  # of an entry of a zip archive: sizes come later, names are of UTF-8
_UNSAFE = "Unsupported global"  # torch's message for what is not on its safe list


class CheckpointError(ValueError):
    """A checkpoint is damaged or incomplete, or holds what cannot be loaded safely."""

    def __init__(self, path: object, reason: object) -> None:
        super().__init__(str(path), _line(reason))

    def __str__(self) -> str:
        return "corrupted or incomplete checkpoint: {} ({})".format(*self.args)


def _line(reason: object) -> str:
    """Return the first line of an error message, with its type if it says nothing else."""
    text = str(reason).strip().split("\n")[0]
    if isinstance(reason, BaseException) and len(text) < 10:
        text = f"{type(reason).__name__}: {text}"
    return text[:300]


def check_checkpoint(path: str | os.PathLike[str], part: int = 0, parts: int = 1) -> None:
    """Raise CheckpointError if a file, or a folder of a sharded strategy, is damaged.

    Nothing in it is executed. A file that does not exist raises FileNotFoundError.

    Args:
        path: the file or the folder.
        part: which part of a folder's files to check; ranks can share the work.
        parts: the number of parts.
    """
    path = Path(path)
    if not path.is_dir():
        check_file(path)
        return
    pieces = _pieces(path)
    for name in sorted(pieces)[part::parts]:
        try:
            _check_places(path / name, pieces[name])
        except FileNotFoundError as error:
            raise CheckpointError(path, f"{name} is missing") from error
        except Exception as error:  # a damaged archive may raise anything
            raise CheckpointError(path / name, error) from error


def _check_places(path: Path, places: list[tuple[int, int]]) -> None:
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        for offset, length in places:
            if offset + length > size:
                raise EOFError(f"{path.name} ends early")
            file.seek(offset)
            _check_piece(io.BytesIO(file.read(length)))
        if not places:
            _check_piece(file)


def _opened(path: Path) -> IO[bytes]:
    if path.exists() and not path.is_file():
        raise ValueError("not a file")  # opening a pipe would wait forever
    return path.open("rb")


def check_file(path: Path) -> None:
    """Raise CheckpointError unless a file is a complete checkpoint."""
    if path.exists() and not path.is_file():
        raise CheckpointError(path, "not a file")  # opening a pipe would wait forever
    with path.open("rb") as file:
        try:
            _check_piece(file)
        except Exception as error:  # a damaged archive may raise anything
            raise CheckpointError(path, error) from error
    try:
        torch.load(str(path), weights_only=True, map_location="meta", mmap=True)
    except Exception as error:
        if _UNSAFE not in str(error):  # that is for the one who loads it to decide
            raise CheckpointError(path, error) from error


def load_bytes(content: bytes, name: str) -> Any:
    """Load what torch.save wrote, with weights_only=True; `name` is for the message."""
    try:
        _check_piece(io.BytesIO(content))
        return torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:
        raise CheckpointError(name, error) from error


def load_file(path: Path) -> Any:
    """Load a checked file with weights_only=True."""
    try:
        return torch.load(path, weights_only=True)
    except Exception as error:
        raise CheckpointError(path, error) from error


def _check_piece(content: IO[bytes]) -> None:
    with zipfile.ZipFile(content) as archive:
        if len(set(archive.namelist())) < len(archive.namelist()):
            raise zipfile.BadZipFile("two entries of one name")
        for entry in archive.infolist():
            # torch sets none of these. Where they say that an entry is a folder, or compressed,
            # torch.load reads nothing and returns whatever was in the memory before.
            given = entry.external_attr, entry.internal_attr, entry.volume, entry.compress_type
            if any(given) or entry.flag_bits & ~_FLAGS:
                raise zipfile.BadZipFile(f"damaged entry of {entry.filename} in the directory")
        damaged = archive.testzip()  # after it is known that nothing is compressed
        if damaged is not None:
            raise zipfile.BadZipFile(f"damaged in {damaged}")


def _pieces(folder: Path) -> dict[str, list[tuple[int, int]]]:
    """Return the places of all pieces of a sharded checkpoint by file."""
    path = folder / ".metadata"
    pieces: dict[str, list[tuple[int, int]]] = {}
    try:
        with _opened(path) as file:
            metadata = _SafeUnpickler(file).load()
            if file.read(1):
                raise EOFError("bytes after the end")
        _check_complete(metadata)
        for piece in metadata.storage_data.values():
            name, place = Path(piece.relative_path), (piece.offset, piece.length)
            if name.is_absolute() or ".." in name.parts:
                raise ValueError(f"a piece is outside the folder: {name}")
            if not all(isinstance(n, int) and n >= 0 for n in place):
                raise ValueError(f"{name} has a piece at {place}")
            pieces.setdefault(str(name), []).append(place)
        if (folder / _EXTRA).exists():
            pieces[_EXTRA] = []  # one piece
    except Exception as error:  # a damaged pickle may raise anything
        raise CheckpointError(path, error) from error
    return pieces


def _check_complete(metadata: Any) -> None:
    """Raise unless every entry of a sharded checkpoint has its pieces."""
    stored = {(piece.fqn, piece.offset) for piece in metadata.storage_data}
    for name, entry in metadata.state_dict_metadata.items():
        chunks = getattr(entry, "chunks", None)
        for offsets in [None] if chunks is None else [chunk.offsets for chunk in chunks]:
            if (name, offsets) not in stored:
                raise ValueError(f"a piece of {name} is missing")


class _SafeUnpickler(pickle.Unpickler):
    """Unpickles the metadata of a sharded checkpoint, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class on the list, or a data type of torch."""
        if module == "torch" and isinstance(vars(torch).get(name), torch.dtype):
            return vars(torch)[name]
        if (module, name) not in _SAFE:
            raise pickle.UnpicklingError(f"{module}.{name} must not be in a checkpoint's metadata")
        return super().find_class(module, name)
