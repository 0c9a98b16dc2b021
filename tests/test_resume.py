"""A killed training goes on in a fresh process to the same numbers, bit for bit."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent / "resume_training.py"


def train(folder, *stop):
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(SCRIPT), str(folder), *map(str, stop)]
    return subprocess.run(
        command, cwd=SCRIPT.parent.parent, env=None, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    result = train(folder)
    assert result.returncode == 0, result.stderr
    return torch.load(folder / "end.pt", weights_only=True)


# In the first epoch, in the middle of the second, right at its end, and twice.
@pytest.mark.parametrize("stops", [(3,), (13,), (16,), (5, 21)])
def test_a_killed_run_resumes_to_the_same_bits(uninterrupted, stops, tmp_path):
    for stop in stops:
        assert train(tmp_path, stop).returncode == -signal.SIGKILL
    result = train(tmp_path)
    assert result.returncode == 0, result.stderr
    end = torch.load(tmp_path / "end.pt", weights_only=True)
    torch.testing.assert_close(end, uninterrupted, rtol=0, atol=0)


def test_the_resumed_state_holds_all_kinds_of_values(uninterrupted):
    state = uninterrupted["optimizer"]["powalm"]
    assert set(state["y"]) == {"unit_rows", "budget", "class_loss", "rate"}
    assert set(state["epoch"]) == {"class_loss", "rate"}  # 30 steps end inside an epoch of 8
    assert all(y.abs().sum() > 0 for name, y in state["y"].items() if name != "budget")
    assert len(uninterrupted["records"]) == 3
