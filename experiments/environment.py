"""Commit, package versions and machine of a run; no host name, no paths."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "numpy", "scikit-learn", "lightning", "hydra-core")


def environment() -> dict[str, Any]:
    """Describe what a run was made with."""
    return {
        "commit": _commit(),
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in PACKAGES},
        "machine": {
            "system": platform.system(),
            "architecture": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
    }


def _commit() -> str | None:
    """The checked-out commit, marked if files differ from it; None outside a clone."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        here = Path(__file__).parent
        return subprocess.run(
            command, cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
