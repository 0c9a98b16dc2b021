"""scipy and numpy, which certificates need and the rest of the package does not."""

import importlib
from typing import Any


def load(name: str) -> Any:
    """Return numpy or a part of scipy; say how to install it if it is missing."""
    try:
        return importlib.import_module("numpy" if name == "numpy" else f"scipy.{name}")
    except ImportError as error:
        raise ImportError("certify needs scipy; pip install 'torch-powalm[certify]'") from error
