"""Ranks that disagree: an error by name on all four of them, within seconds."""

import subprocess
import sys

from experiments.attacks.rank_disagreements import KINDS
from tests.processes import ROOT
from tests.versions import NEEDS_FSDP2
from torch_powalm.training.distributed.agreement import deadline

SOME = [
    "another order",
    "another learning rate",
    "a prox term",
    "another kind",
    "counts",
    "leaves out one augment",
    "leaves out one update",
    "leaves out one step",
    "parameters only: updates once more",
]


def run(*arguments):
    command = [sys.executable, "-m", "experiments.attacks.rank_disagreements", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=400, check=False
    )
    return done.stdout + done.stderr


def test_some_kinds_of_disagreement_under_ddp():
    """A part of `make attack`."""
    printed = run(*SOME)
    assert f"{len(SOME)} of {len(SOME)} kinds: an error by name on all ranks" in printed, printed
    for message in (
        "the order of the constraints must be the same on all ranks, got rows, rate, share on rank",
        "lr of group 0 must be the same on all ranks, got 0.01 on ranks 0, 1, 2 and 0.02 on rank 3",
        "prox must be the same on all ranks, got None on ranks 0, 1, 2 and given on rank 3",
        "constraint 'rate' must be the same on all ranks, got inequality of the batch, 1 numbers",
        "the batch of augment() must be the same on all ranks, got 1 numbers of float64 of 'rate'",
        "augment() for the 5th time on ranks 0, 1, 2 and backward for the 5th time on rank 3",
        "update_multipliers() for the 2nd time on ranks 0, 1, 2 and augment() for the 7th time on",
        "the number of steps must be the same on all ranks, got 5 on ranks 0, 1, 2 and 4 on rank 3",
        "backward for the 5th time on ranks 0, 1, 2 and update_multipliers() for the 2nd time on",
    ):
        assert message in printed, printed


def test_there_are_many_kinds():
    assert len(set(KINDS)) >= 20


def test_the_deadline_can_be_set(monkeypatch):
    assert deadline() == 12.0
    monkeypatch.setenv("TORCH_POWALM_DEADLINE", "60")
    assert deadline() == 60.0


@NEEDS_FSDP2
def test_kinds_of_disagreement_under_fsdp2():
    printed = run("--sharded", "another nu", "leaves out one augment", "leaves out one update")
    assert "3 of 3 kinds: an error by name on all ranks" in printed, printed
    for message in (
        "augment() for the 5th time on ranks 0, 1, 2 and backward for the 5th time on rank 3",
        "update_multipliers() for the 2nd time on ranks 0, 1, 2 and forward for the 6th time on",
    ):
        assert message in printed, printed
