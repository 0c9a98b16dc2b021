"""Run folders: run.json and history.csv, such that a killed run is never taken as finished."""

import csv
import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "numpy", "scikit-learn", "lightning", "hydra-core")
KEPT = 10  # instances whose histories are committed


@dataclass(frozen=True)
class Run:
    """A finished run.

    Args:
        folder: where it is kept.
        run: contents of run.json.
    """

    folder: Path
    run: dict[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        """The resolved config."""
        config: dict[str, Any] = self.run["config"]
        return config

    @property
    def result(self) -> dict[str, Any]:
        """What the run ended with."""
        result: dict[str, Any] = self.run["result"]
        return result

    @property
    def converged(self) -> bool:
        """Whether both residuals hold."""
        return bool(self.run["status"] == "converged")

    @cached_property
    def history(self) -> dict[str, list[float]]:
        """The columns of history.csv that are numbers; empty if it was not kept."""
        path = self.folder / "history.csv"
        if not path.exists():
            return {}
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        words = ("inner_status", "multiplier")
        return {name: [float(row[name]) for row in rows] for name in rows[0] if name not in words}


def digest(settings: Mapping[str, Any]) -> str:
    """Eight letters that stand for the settings."""
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def finished(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the folder holds the finished run of this resolved config."""
    try:
        return bool(json.loads((folder / "run.json").read_text())["config"] == config)
    except (OSError, ValueError, KeyError):
        return False


def write(folder: Path, run: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
    """Write history.csv, then run.json: the run counts as finished from this moment on."""
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "history.csv") as path, path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(history[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(history)
    with replacing(folder / "run.json") as path:
        path.write_text(json.dumps(run, indent=1) + "\n")


def read(root: Path) -> list[Run]:
    """All finished runs below a folder, in the order of their names."""
    paths = sorted(root.rglob("run.json"))
    return [Run(path.parent, json.loads(path.read_text())) for path in paths]


def keep(runs: Sequence[Run], root: Path, target: Path) -> None:
    """Copy the records below root to target, in place of what is there.

    Histories only of the first instances, which tables and curves are made of: those of all would
    be ten times as large.
    """
    shutil.rmtree(target, ignore_errors=True)
    for run in runs:
        folder = target / run.folder.relative_to(root)
        folder.mkdir(parents=True)
        for path in run.folder.iterdir():
            if path.name != "history.csv" or run.run["seed"] < KEPT:
                shutil.copy(path, folder)


def environment() -> dict[str, Any]:
    """What a run was made with; neither names nor paths of the machine."""
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


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside the path, which takes its name once it is complete."""
    temporary = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _commit() -> str | None:
    """The checked-out commit, with a mark if files differ from it; None outside a clone."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        here = Path(__file__).parent
        return subprocess.run(
            command, cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
