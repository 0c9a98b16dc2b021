"""The peers, one file each: `solve(problem, x_1, eps, watch, **settings)`, and METHODS.

The first settings of a method are the recommended ones, the others are the grid that is tried; the
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
    """The module of a peer, or why there is none."""
    try:
        return importlib.import_module(f"experiments.benchmarks.peers.{name}")
    except (ImportError, SyntaxError, AttributeError) as error:
        return f"not installed: {type(error).__name__}: {str(error).splitlines()[0]}"


def versions() -> dict[str, str]:
    """The versions of what is installed."""
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
