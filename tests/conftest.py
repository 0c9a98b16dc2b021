"""Fixtures that the tests of several folders share."""

import gc
import os

import pytest
import torch

gc.disable()  # until the modules are imported


def pytest_collection_finish():
    """Leave what the imports made out of every later collection of garbage, which takes seconds."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure():
    """Let the interpreter clear its modules at the end."""
    gc.unfreeze()


# Helper modules with assertions of their own show values as test files do.
pytest.register_assert_rewrite(
    "tests.processes", "tests.training.small_training", "tests.lightning.small_module"
)


@pytest.fixture(autouse=True)
def one_thread():
    """The sums of several threads depend on their number."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory):
    """One folder for all test processes of this run."""
    root = tmp_path_factory.getbasetemp()
    return root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
