"""A DeepXDE model trained under its boundary condition, in a process with the torch backend."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("deepxde") is None:  # importing it here would fix its backend
    pytest.skip("deepxde is not installed", allow_module_level=True)


def test_a_boundary_loss_becomes_a_constraint():
    environment = {**os.environ, "DDE_BACKEND": "pytorch", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.integrations.deepxde_training"],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert "model must be compiled with a torch optimizer first, got none" in result.stdout
    assert "model.data must have boundary or initial conditions, got none" in result.stdout
    error, violation = json.loads(result.stdout.splitlines()[-1])
    assert error < 0.05
    assert violation < 0.05
