"""Damaged checkpoints raise by name, and the one before is found."""

import pytest

pytest.importorskip("lightning")
import torch
import torch.distributed.checkpoint
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.lightning.small_module import Lit, fit, loader, trainer
from torch_powalm.lightning import PowerALMCallback
from torch_powalm.training.checkpoint_io import (
    check_checkpoint,
    last_checkpoint,
    load_checkpoint,
    save_checkpoint,
)

# Damaged files


def damage(path, how):
    whole = path.read_bytes()
    if how == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    else:  # one bit inside of a tensor: torch.load would not notice
        spoiled = bytearray(whole)
        spoiled[whole.index(torch.full((64,), 2.0).numpy().tobytes()) + 5] ^= 1
        path.write_bytes(spoiled)


@pytest.mark.parametrize("how", ["truncated", "empty", "a bit"])
def test_a_damaged_checkpoint_raises_by_name_and_the_one_before_is_found(how, tmp_path):
    state = {"value": torch.full((64,), 2.0), "k": 3}
    for name in ("a.ckpt", "b.ckpt"):
        save_checkpoint(state, tmp_path / name)
    assert not list(tmp_path.glob("*.part"))
    damage(tmp_path / "b.ckpt", how)
    with pytest.raises(ValueError, match=r"corrupted or incomplete checkpoint: .*b\.ckpt \("):
        load_checkpoint(tmp_path / "b.ckpt")
    with pytest.warns(UserWarning, match=r"b\.ckpt .*trying the previous one"):
        assert last_checkpoint(tmp_path) == tmp_path / "a.ckpt"
    assert load_checkpoint(tmp_path / "a.ckpt")["k"] == 3
    check_checkpoint(tmp_path / "a.ckpt")
    assert last_checkpoint(tmp_path, "*.none") is None


def test_a_trainer_refuses_a_damaged_checkpoint_by_its_name(tmp_path):
    fit(Lit(), ModelCheckpoint(tmp_path, filename="one"), max_epochs=1)
    damage(tmp_path / "one.ckpt", "truncated")
    with pytest.raises(ValueError, match=r"corrupted or incomplete checkpoint: .*one\.ckpt"):
        trainer(PowerALMCallback()).fit(Lit(), loader(), ckpt_path=tmp_path / "one.ckpt")


@pytest.mark.parametrize("how", ["truncated", "a bit", "missing", "metadata"])
@pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable)")
def test_a_damaged_folder_raises_by_name_and_the_one_before_is_found(how, tmp_path):
    state = {"value": torch.full((64,), 2.0), "k": 3}
    for name in ("a.ckpt", "b.ckpt"):
        torch.distributed.checkpoint.save(state, checkpoint_id=tmp_path / name)
    shards = tmp_path / "b.ckpt" / "__0_0.distcp"
    if how == "missing":
        shards.unlink()
    elif how == "metadata":
        damage(tmp_path / "b.ckpt" / ".metadata", "truncated")
    else:
        damage(shards, how)
    file = "metadata" if how == "metadata" else "__0_0.distcp"
    with pytest.raises(ValueError, match=rf"corrupted or incomplete checkpoint: .*b\.ckpt.*{file}"):
        check_checkpoint(tmp_path / "b.ckpt")
    with pytest.warns(UserWarning, match="trying the previous one"):
        assert last_checkpoint(tmp_path) == tmp_path / "a.ckpt"
    if how != "metadata":  # the one file is in the first of two parts
        check_checkpoint(tmp_path / "b.ckpt", 1, 2)
