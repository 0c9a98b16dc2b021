"""Training steps of two versions of torch_powalm, measured in one process.

`python -m experiments.benchmarks.overhead --against FOLDER` runs it. Only public names of both
versions are used.
"""

import importlib
import statistics
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch_powalm
from experiments.benchmarks.interleaved import interleave, ratios
from experiments.benchmarks.training_steps import EPOCH, ours
from experiments.benchmarks.training_tasks import Task

NAME = "torch_powalm"
POWERS = (1.0, 0.7)


class Version:
    """A version of the package with its own modules.

    Args:
        folder: a checkout; None for the version in use.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.package: ModuleType = torch_powalm
        self.modules = _loaded()
        if folder is not None:
            self.modules = {}
            with self.active():
                self.package = _import_from(folder)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make `import torch_powalm` mean this version, also inside its functions."""
        before = _loaded()
        _install(self.modules)
        try:
            yield
        finally:
            self.modules = _loaded()
            _install(before)


def compare(
    cases: Mapping[str, tuple[type[Task], bool]], folder: Path, rounds: int, steps: int
) -> list[tuple[str, float, tuple[float, float, float]]]:
    """Quartiles over rounds of (time of a step here / in the other version), by case and ν."""
    versions = {"new": Version(), "old": Version(folder)}
    found = []
    for case, (kind, batch) in cases.items():
        methods = {}
        for nu in POWERS:
            for name, version in versions.items():
                with version.active():
                    methods[f"{name} {nu}"] = ours(nu, version.package)(kind(), batch)
        times = interleave(
            methods,
            rounds,
            steps,
            label=case,
            warm_up=EPOCH + 5,
            around=lambda method: versions[method.split()[0]].active(),
        )
        for nu in POWERS:
            first, middle, third = statistics.quantiles(ratios(times, f"new {nu}", f"old {nu}"))
            found.append((case, nu, (first, middle, third)))
    return found


def _import_from(folder: Path) -> ModuleType:
    sys.path.insert(0, str(folder.resolve()))
    try:
        return importlib.import_module(NAME)
    finally:
        sys.path.pop(0)


def _loaded() -> dict[str, ModuleType]:
    return {name: m for name, m in sys.modules.items() if name.split(".")[0] == NAME}


def _install(modules: Mapping[str, ModuleType]) -> None:
    for name in _loaded():
        del sys.modules[name]
    sys.modules.update(modules)
