"""A killed training resumes in a fresh process bit for bit."""

import signal

import pytest
import torch

from tests.processes import FRESH
from tests.training.resume_training import main


def train(folder, *stop):
    """Train in a process of its own; return its exit code."""
    folder.mkdir(exist_ok=True)
    job = FRESH.Process(target=main, args=(folder, *stop))
    job.start()
    job.join()
    return job.exitcode


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    assert train(folder) == 0
    return torch.load(folder / "end.pt", weights_only=True)


# In the first epoch, in the middle of the second, right at its end, and twice.
@pytest.mark.parametrize("stops", [(3,), (13,), (16,), (5, 21)])
def test_a_killed_run_resumes_to_the_same_bits(uninterrupted, stops, tmp_path):
    for stop in stops:
        assert train(tmp_path, stop) == -signal.SIGKILL
    assert train(tmp_path) == 0
    end = torch.load(tmp_path / "end.pt", weights_only=True)
    torch.testing.assert_close(end, uninterrupted, rtol=0, atol=0)


def test_the_resumed_state_holds_all_kinds_of_values(uninterrupted):
    state = uninterrupted["optimizer"]["powalm"]
    assert set(state["y"]) == {"unit_rows", "budget", "class_loss", "rate"}
    assert set(state["epoch"]) == {"class_loss", "rate"}  # 30 steps end inside an epoch of 8
    assert all(y.abs().sum() > 0 for name, y in state["y"].items() if name != "budget")
    assert len(uninterrupted["records"]) == 3
