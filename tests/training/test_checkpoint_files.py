"""Checkpoint files: damage is named, nothing in them runs, and writing leaves no litter."""

import errno
import inspect
import io
import os
import pickle
import resource
import signal
import threading
import zipfile
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from torch_powalm import (
    CheckpointError,
    check_checkpoint,
    last_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from torch_powalm.training.atomic_file import write_atomically

STATE = {"step": 3, "weights": torch.arange(200.0)}


class Payload:
    """Runs when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def assert_damaged(path: Path, content: bytes) -> None:
    """Write content that no function may take for a checkpoint."""
    path.write_bytes(content)
    for function in (check_checkpoint, load_checkpoint):
        with pytest.raises(CheckpointError, match=f"corrupted or incomplete .*{path.name}"):
            function(path)
    with pytest.warns(UserWarning, match="corrupted or incomplete checkpoint"):
        assert last_checkpoint(path.parent) is None
    path.unlink()


def test_every_kind_of_damage_is_one_error_with_the_name(tmp_path):
    save_checkpoint(STATE, tmp_path / "a.ckpt")
    whole = (tmp_path / "a.ckpt").read_bytes()
    middle = len(whole) // 2
    for content in (
        b"",
        b"text",
        whole[:middle],
        whole[:100] + whole[300:],  # bytes cut out
        whole[:middle] + b"\0" * 64 + whole[middle + 64 :],
        whole[:-10],
        pickle.dumps({"a": 1}),
    ):
        assert_damaged(tmp_path / "a.ckpt", content)


def test_an_entry_that_is_missing_from_the_archive_is_found(tmp_path):
    save_checkpoint(STATE, tmp_path / "b.ckpt")
    content = io.BytesIO()
    with zipfile.ZipFile(tmp_path / "b.ckpt") as old, zipfile.ZipFile(content, "w") as new:
        for name in old.namelist():
            if not name.endswith("data/0"):
                new.writestr(name, old.read(name))
    (tmp_path / "b.ckpt").unlink()
    assert_damaged(tmp_path / "a.ckpt", content.getvalue())


def test_last_checkpoint_goes_back_past_anything(tmp_path):
    save_checkpoint(STATE, tmp_path / "old.ckpt")
    os.utime(tmp_path / "old.ckpt", (1, 1))
    (tmp_path / "cut.ckpt").write_bytes((tmp_path / "old.ckpt").read_bytes()[:99])
    (tmp_path / "nowhere.ckpt").symlink_to(tmp_path / "gone")
    (tmp_path / "folder.ckpt").mkdir()
    os.mkfifo(tmp_path / "pipe.ckpt")
    with pytest.warns(UserWarning, match="corrupted or incomplete checkpoint"):
        assert last_checkpoint(tmp_path) == tmp_path / "old.ckpt"


def test_missing_folders_are_created(tmp_path):
    save_checkpoint(STATE, tmp_path / "new" / "folder" / "a.ckpt")
    assert last_checkpoint(tmp_path / "new" / "folder") == tmp_path / "new" / "folder" / "a.ckpt"


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.ckpt"):
        load_checkpoint(tmp_path / "gone.ckpt")
    with pytest.raises(CheckpointError, match="a folder; load it with torch"):
        load_checkpoint(tmp_path)


def test_a_payload_in_a_file_does_not_run(tmp_path):
    trace, path = tmp_path / "trace", tmp_path / "a.ckpt"
    torch.save({"a": Payload(trace)}, path)
    check_checkpoint(path)  # whole, but not for load_checkpoint
    assert last_checkpoint(tmp_path) == path
    with pytest.raises(CheckpointError, match=r"a\.ckpt"):
        load_checkpoint(path)
    assert not trace.exists()


@pytest.fixture
def sharded(tmp_path):
    """The folder of a sharded strategy."""
    folder = tmp_path / "a.ckpt"
    state = {"model": {"w": torch.ones(3), "h": torch.ones(2).half()}, "step": 3}
    alone = {"no_dist": True} if "no_dist" in inspect.signature(dcp.save).parameters else {}
    with pytest.warns(UserWarning, match="single process"):
        dcp.save(state, checkpoint_id=folder, **alone)
    return folder


def test_a_payload_in_sharded_metadata_does_not_run(sharded, tmp_path):
    check_checkpoint(sharded)
    metadata = pickle.loads((sharded / ".metadata").read_bytes())
    metadata.planner_data = Payload(tmp_path / "trace")
    (sharded / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=r"\.metadata \(pathlib.*must not be in a checkpoint"):
        check_checkpoint(sharded)
    with pytest.warns(UserWarning, match="must not be in a checkpoint's metadata"):
        assert last_checkpoint(tmp_path) is None
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"relative_path": "../other"}, "a piece is outside the folder"),
        ({"relative_path": "gone.distcp"}, r"gone\.distcp is missing"),
        ({"offset": -1}, "has a piece at"),
        ({"length": 10**9}, "ends early"),
        ({"length": 10}, "distcp"),
    ],
)
def test_metadata_must_fit_the_files(sharded, change, message):
    metadata = pickle.loads((sharded / ".metadata").read_bytes())
    vars(next(iter(metadata.storage_data.values()))).update(change)
    (sharded / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=message):
        check_checkpoint(sharded)


def test_a_device_or_pipe_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link"):
        with pytest.raises(ValueError, match="path must be a regular file, got the device or pipe"):
            save_checkpoint(STATE, tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()


def test_a_link_into_a_missing_folder_is_named(tmp_path):
    (tmp_path / "link.ckpt").symlink_to(tmp_path / "gone" / "a.ckpt")
    with pytest.raises(FileNotFoundError, match=r"cannot write the checkpoint: .*link\.ckpt"):
        save_checkpoint(STATE, tmp_path / "link.ckpt")


@pytest.mark.parametrize("which", ["model.w", "step"])
def test_every_entry_must_have_its_pieces(sharded, which):
    metadata = pickle.loads((sharded / ".metadata").read_bytes())
    for key in [key for key in metadata.storage_data if key.fqn == which]:
        del metadata.storage_data[key]
    (sharded / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=f"a piece of {which} is missing"):
        check_checkpoint(sharded)


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_a_pipe_in_a_folder_does_not_wait(sharded, name):
    (sharded / name).unlink()
    os.mkfifo(sharded / name)
    with pytest.raises(CheckpointError, match=rf"{name} \(not a file\)"):
        check_checkpoint(sharded)


def test_the_other_file_of_lightning_is_checked_too(sharded):
    torch.save({"epoch": 3}, sharded / "meta.pt")
    check_checkpoint(sharded)
    content = bytearray((sharded / "meta.pt").read_bytes())
    content[content.index(b"epoch")] ^= 1
    (sharded / "meta.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"meta\.pt"):
        check_checkpoint(sharded)


def test_bytes_after_the_metadata_are_damage(sharded):
    with (sharded / ".metadata").open("ab") as file:
        file.write(b"x")
    with pytest.raises(CheckpointError, match="bytes after the end"):
        check_checkpoint(sharded)


def test_mode_and_links_are_kept(tmp_path):
    path, link = tmp_path / "a.ckpt", tmp_path / "link.ckpt"
    save_checkpoint(STATE, path)
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    path.chmod(0o600)
    link.symlink_to(path)
    save_checkpoint({"step": 4}, link)
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_checkpoint(path) == {"step": 4}
    with pytest.raises(IsADirectoryError, match="path must be a file, got the folder"):
        save_checkpoint(STATE, tmp_path)


def test_two_writers_both_end_well(tmp_path):
    path, errors = tmp_path / "a.ckpt", []

    def write(step):
        try:
            for _ in range(10):
                save_checkpoint({"step": step, "weights": torch.ones(5000)}, path)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(step,)) for step in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert load_checkpoint(path)["step"] in range(4)
    assert os.listdir(tmp_path) == ["a.ckpt"]


def in_child(work):
    """Run a function in a forked process, and return how it ended."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def be_killed(file):
    file.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_next_writer_removes_what_a_kill_left(tmp_path):
    path = tmp_path / "a.ckpt"
    save_checkpoint(STATE, path)
    assert in_child(lambda: write_atomically(path, be_killed)) == -9
    assert len(os.listdir(tmp_path)) == 2
    assert load_checkpoint(path)["step"] == 3
    assert last_checkpoint(tmp_path, "*") == path
    save_checkpoint(STATE, tmp_path / "b.ckpt")
    assert sorted(os.listdir(tmp_path)) == ["a.ckpt", "b.ckpt"]


def test_a_full_disk_says_so_and_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.ckpt"
    save_checkpoint(STATE, path)

    def full(state, file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match=r"cannot write the checkpoint: No space left .*a\.ckpt"):
        save_checkpoint({"step": 4}, path)
    monkeypatch.undo()
    assert load_checkpoint(path)["step"] == 3
    assert os.listdir(tmp_path) == ["a.ckpt"]


def test_a_write_that_fails_halfway_is_named(tmp_path):
    path, said = tmp_path / "a.ckpt", tmp_path / "said"

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        try:
            save_checkpoint({"weights": torch.ones(10000)}, path)
        except OSError as error:
            said.write_text(str(error))

    assert in_child(work) == 7
    assert "cannot write the checkpoint: File too large" in said.read_text()
    assert os.listdir(tmp_path) == ["said"]


def test_no_byte_of_the_directory_of_a_file_changes_what_is_loaded(tmp_path):
    """torch reads nothing of an entry that is marked as a folder, and returns old memory."""
    path, state = tmp_path / "a.ckpt", {"w": torch.arange(20.0)}
    save_checkpoint(state, path)
    content = path.read_bytes()
    refused = 0
    for i in range(content.index(b"PK\x01\x02"), len(content)):
        changed = bytearray(content)
        changed[i] ^= 16
        path.write_bytes(changed)
        try:
            found = load_checkpoint(path)
        except CheckpointError:
            refused += 1
        else:
            assert torch.equal(found["w"], state["w"]), i
    assert refused > 100


def test_ctrl_c_in_a_write_stays_ctrl_c_and_keeps_the_old_file(tmp_path):
    path = tmp_path / "a.ckpt"
    save_checkpoint({"n": 1}, path)

    def write(file):
        checked = file._file
        file._file = Interrupting(checked)
        torch.save({"w": torch.arange(99.0)}, file)

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, write)
    assert load_checkpoint(path) == {"n": 1}
    assert [found.name for found in tmp_path.iterdir()] == ["a.ckpt"]


class Interrupting:
    """A file in whose second write Ctrl-C comes."""

    def __init__(self, file):
        self.file, self.writes = file, 0

    def write(self, content):
        self.writes += 1
        if self.writes == 2:
            raise KeyboardInterrupt
        return self.file.write(content)
