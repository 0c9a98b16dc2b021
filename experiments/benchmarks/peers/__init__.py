"""The peers, one file each, with `solve(problem, x_1, eps, clock, **settings)` and METHODS.

The first settings of a method are the recommended ones, the others are the grid to try. The
docstring of a file says what was tuned.
"""

import importlib
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

PEERS = (
    "alpaqa",
    "pbalm",
    "cyipopt",
    "scipy",
    "pygranso",
    "cooper",
    "humancompatible",
    "mdmm",
)


def load(name: str) -> ModuleType | str:
    """The module of a peer, or the reason why it cannot be imported."""
    try:
        return importlib.import_module(f"experiments.benchmarks.peers.{name}")
    except (ImportError, SyntaxError, AttributeError) as error:
        return f"not installed: {type(error).__name__}: {str(error).splitlines()[0]}"


def versions() -> dict[str, str]:
    """The versions of the installed peers."""
    found = {}
    for name in PEERS:
        module = load(name)
        if not isinstance(module, str):
            try:
                found[module.PACKAGE] = version(module.PACKAGE)
            except PackageNotFoundError:
                found[module.PACKAGE] = "unknown"
            found[module.PACKAGE] += getattr(module, "OVER", "")
    return found
