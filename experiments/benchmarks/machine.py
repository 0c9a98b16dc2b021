"""What a benchmark was measured with, beside its numbers."""

import json
import platform
from pathlib import Path

from experiments import records
from experiments.benchmarks import peers


def write_machine(path: Path, **more: str) -> None:
    """Machine, commit and versions, without names and paths, and what else is to be known."""
    found = records.environment() | more
    found["machine"]["processor"] = _processor()
    found["versions"] |= peers.versions()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown")
