"""Machine, commit and versions of the benchmarks, in one file next to their CSVs."""

import json
import platform
from pathlib import Path
from typing import Any

from experiments.atomic_files import write_text
from experiments.benchmarks import peers
from experiments.environment import environment

FILE = "machines.json"


def record_machine(folder: Path, benchmark: str, **more: str) -> None:
    """Note what a benchmark was measured with, without names and paths of the machine."""
    found = environment() | more
    found["machine"]["processor"] = _processor()
    found["versions"] |= peers.versions()
    machines = read_machines(folder) | {benchmark: found}
    write_text(folder / FILE, json.dumps(dict(sorted(machines.items())), indent=1) + "\n")


def read_machines(folder: Path) -> dict[str, Any]:
    """What every benchmark was measured with, by its name."""
    path = folder / FILE
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown")
