"""Damaged checkpoint files: each is refused as CheckpointError, or loads as it was saved."""

import os
import random
import tempfile
import warnings
from pathlib import Path

import torch

from experiments.attacks.findings import FindingError
from experiments.attacks.small_training import same
from torch_powalm import CheckpointError, last_checkpoint, load_checkpoint, save_checkpoint

STATE = {"step": 3, "w": torch.arange(300.0), "groups": [{"lr": 0.1, "names": ["a", "b"]}]}


def damaged(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    """Return a description and a damaged copy of a file's bytes."""
    i, j = sorted(rng.randrange(len(content)) for _ in range(2))
    changed = bytearray(content)
    kind = rng.choice(["bits", "cut", "hole", "zeros", "noise", "doubled", "appended", "moved"])
    if kind == "bits":
        for _ in range(rng.choice([1, 1, 2, 20])):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        changed = changed[:i]
    elif kind == "hole":
        del changed[i:j]
    elif kind == "zeros":
        changed[i:j] = bytes(j - i)
    elif kind == "noise":
        changed[i:j] = rng.randbytes(j - i)
    elif kind == "doubled":
        changed[i:i] = changed[i:j]
    elif kind == "appended":
        changed += rng.randbytes(rng.choice([1, 30, 70_000]))
    else:
        changed = changed[i:] + changed[:i]
    return f"{kind} at {i} to {j}", bytes(changed)


def attack_file(rng: random.Random) -> str:
    """Damage one file beside an older one that is whole."""
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        save_checkpoint(STATE, folder / "old.ckpt")
        os.utime(folder / "old.ckpt", (1, 1))
        what, content = damaged((folder / "old.ckpt").read_bytes(), rng)
        (folder / "new.ckpt").write_bytes(content)
        try:
            found = load_checkpoint(folder / "new.ckpt")
        except CheckpointError as error:
            if "new.ckpt" not in str(error):
                raise FindingError(f"{what}: without a name: {error}") from error
            if last_checkpoint(folder) != folder / "old.ckpt":
                raise FindingError(f"{what}: last_checkpoint took it") from error
            return "refused"
        except Exception as error:
            raise FindingError(f"{what}: {type(error).__name__} {error}") from error
        if not same(found, STATE):
            raise FindingError(f"{what}: loaded wrong")
        return "loaded as it was saved"
