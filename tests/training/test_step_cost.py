"""A step issues hardly more tensor operations than the augmented Lagrangian written by hand."""

from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from experiments.benchmarks.overhead import CASES
from experiments.benchmarks.training_steps import Step, floor, ours
from tests.versions import needs_torch


class Counter(TorchDispatchMode):
    """Counts the operations that reach the dispatcher, backward included."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations(step: Step) -> int:
    for _ in range(3):  # the first steps make the base's state and check the ranks
        step()
    with Counter() as counter:
        step()
    return counter.count


@needs_torch(2, 6)
@pytest.mark.parametrize("nu", [0.7, 1.0])
@pytest.mark.parametrize("case", CASES)
def test_a_step_has_at_most_two_operations_more_than_by_hand(case: str, nu: float) -> None:
    task, batch = CASES[case]
    assert operations(ours(nu)(task(), batch)) <= operations(floor(task(), batch)) + 2
