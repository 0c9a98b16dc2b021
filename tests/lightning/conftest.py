"""Warnings of Lightning that the tests of this folder let pass."""

from pathlib import Path

import pytest

IGNORED = [
    # What Lightning says about small examples, and about torch.
    "ignore:.*does not have many workers",
    "ignore:The number of training batches",
    "ignore:.*is deprecated.*:DeprecationWarning",
    "ignore:.*is deprecated.*:FutureWarning",
    "ignore:The dirpath has changed from",
    "ignore:Be aware that when using `ckpt_path`",
    "ignore:You defined a `validation_step`",
    "ignore:Checkpoint directory .* exists and is not empty",
    "ignore:.*batch_size.*could not be inferred",
    "ignore:Trying to infer the `batch_size`",
]


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for warning in IGNORED:
                item.add_marker(pytest.mark.filterwarnings(warning))
