"""What tests need that not every version of torch or every environment has."""

import pytest
import torch

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
NEEDS_FSDP2 = pytest.mark.skipif(TORCH < (2, 7), reason="fully_shard needs torch 2.7")


def needs_torch(*version: int) -> pytest.MarkDecorator:
    """Skip a test under an older torch."""
    return pytest.mark.skipif(TORCH < version, reason=f"needs torch {version}")
