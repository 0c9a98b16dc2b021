"""Writing a file so that a kill leaves the old content or the new one, and no litter.

The content goes to a temporary file of a unique name in the same folder, which then replaces the
target. Its writer holds a lock on it, which ends with the process: a temporary file that nobody
holds was left by a kill, and the next writer in this folder removes it.
"""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # not on Windows: there, files that a kill left stay
    flock = None  # type: ignore[assignment]

_SUFFIX = ".powalm-part"


def write_atomically(path: str | os.PathLike[str], write: Callable[[IO[bytes]], None]) -> None:
    """Write a file atomically; an existing one keeps its mode, its owner and links to it.

    Args:
        path: the file; the target of a symbolic link is replaced, not the link.
        write: writes the content into an open file.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"path must be a file, got the folder {path}")
    if target.exists() and not target.is_file():  # /dev/null would become a file
        raise ValueError(f"path must be a regular file, got the device or pipe {path}")
    _remove_left_over(target.parent)
    try:
        part, file = _create(target)
    except OSError as error:
        raise _failed(path, error) from error
    try:
        with file:
            checked = _CheckedFile(file)
            try:
                write(checked)  # type: ignore[arg-type]
                _keep_mode(target, file.fileno())
                os.fsync(file.fileno())
            except Exception as error:
                cause = checked.error or error
                if isinstance(cause, OSError):
                    raise _failed(path, cause) from error
                if isinstance(cause, KeyboardInterrupt) or _was_interrupted(error):
                    raise KeyboardInterrupt from error  # torch.save makes another error of it
                raise
            part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def is_temporary(path: Path) -> bool:
    """Whether a file is one that is being written."""
    return path.name.endswith(_SUFFIX)


def _failed(path: object, cause: OSError) -> OSError:
    """Return the error of a failed write with the name of the file, such as a full disk."""
    reason = cause.strerror or str(cause)
    return OSError(cause.errno, f"cannot write the checkpoint: {reason}", str(path))


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether an error was raised while Ctrl-C was handled."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


class _CheckedFile:
    """A file that remembers a failed write, for which torch.save raises an error without a cause.

    Args:
        file: the open file.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.error: OSError | KeyboardInterrupt | None = None

    def write(self, content: Any) -> int:
        """Write all of the content at once, so that a full disk is noticed here."""
        left = memoryview(content).cast("B")
        length = len(left)
        try:
            while left:
                left = left[self._file.write(left) :]
        except (OSError, KeyboardInterrupt) as error:
            self.error = error
            raise
        return length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _create(target: Path) -> tuple[Path, IO[bytes]]:
    """Create a temporary file beside the target, and lock it."""
    while True:
        part = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}{_SUFFIX}")
        file = os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb", 0)
        if flock is None or _lock(file):
            # Another writer may have taken it for left over before it was locked.
            if part.exists():
                return part, file
        file.close()


def _lock(file: IO[bytes]) -> bool:
    try:
        flock(file, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _remove_left_over(folder: Path) -> None:
    """Remove temporary files whose writers are gone."""
    if flock is None:
        return
    for part in folder.glob(f".*{_SUFFIX}"):
        try:
            with part.open("rb") as file:
                flock(file, LOCK_EX | LOCK_NB)
                part.unlink()
        except OSError:  # held by a writer, gone by now, or without locks
            continue


def _keep_mode(target: Path, descriptor: int) -> None:
    """Give the new file the mode and, if allowed, the owner of the one it replaces."""
    try:
        old = target.stat()
    except FileNotFoundError:
        return
    new = os.fstat(descriptor)
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        try:
            os.chown(descriptor, old.st_uid, old.st_gid)
        except OSError:  # only root may give files away
            pass
    os.chmod(descriptor, old.st_mode & 0o7777)


def _sync_folder(folder: Path) -> None:
    """Make a replaced name survive a power failure, where folders can be synchronized."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
