"""Killed trainings resume in fresh processes to the same bits; a few moments of the experiment.

All moments: python -m experiments.benchmarks.crashes
"""

import shutil

import pytest
import torch

from experiments.benchmarks.crash_training import Killer, train_lightning
from experiments.benchmarks.crashes import crash, finish, same


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The uninterrupted training of a kind, made once."""
    made = {}

    def of(kind):
        if kind not in made:
            made[kind] = finish(kind, tmp_path_factory.mktemp("whole") / kind)
        return made[kind]

    return of


@pytest.mark.filterwarnings("ignore")  # what Lightning says about small examples
def test_every_checkpoint_of_a_training_resumes_to_the_same_bits(tmp_path):
    torch.set_num_threads(1)

    def run(name, checkpoint=None):
        folder = tmp_path / name
        folder.mkdir()
        if checkpoint is not None:
            shutil.copy(checkpoint, folder)
        train_lightning(folder, Killer(folder, "never", 0, 0), devices=1)
        return torch.load(folder / "end.pt", weights_only=True)

    whole = run("whole")
    checkpoints = sorted((tmp_path / "whole").glob("*.ckpt"))
    assert len(checkpoints) == 6 + 16  # at the epochs' ends, and every three steps
    for checkpoint in checkpoints:
        assert same(run(checkpoint.stem, checkpoint), whole), checkpoint.name


# In the middle of a batch, of a write, and of an epoch's end; the third epoch ends at step 24, so
# that its last checkpoint was written after its last batch and before its end.
@pytest.mark.parametrize(
    ("kind", "kill"),
    [("lightning", "epoch:3"), ("lightning", "write:5"), ("plain", "write:5")],
)
def test_a_killed_training_resumes_to_the_same_bits(kind, kill, whole, tmp_path):
    crash(kind, tmp_path / "killed", kill)
    assert not (tmp_path / "killed" / "end.pt").exists()
    end = finish(kind, tmp_path / "killed")
    assert same(end, whole(kind))
    assert len(end["records"]) == 6
    assert not same({**end, "records": end["records"][1:]}, whole(kind))


def test_when_one_rank_is_killed_the_job_ends_and_resumes_to_the_same_bits(whole, tmp_path):
    seconds = crash("ddp", tmp_path / "killed", "batch:29", rank=1)
    assert seconds < 60
    assert same(finish("ddp", tmp_path / "killed"), whole("ddp"))
