"""One run: a task, a method, a seed, a unit system and a base; returns one row of the table."""

import json
import math
import time
import warnings
from typing import Any, NamedTuple

import torch

from experiments.constraint_bench.method import Method, base_of
from experiments.constraint_bench.task import UNITS, Task, Training, in_units

FAILURES = (RuntimeError, ValueError, FloatingPointError, ArithmeticError)


class Outcome(NamedTuple):
    """What a run ended with, in the task's own units.

    Args:
        status: "trained", or the error that ended the run.
        merit: figure of merit on the training data, lower is better.
        test_merit: figure of merit on the test data.
        excess: largest violation over its tolerance on the training data; feasible if at most 1.
        test_excess: the same on the test data.
        violations: largest violation of each block on the training data, as JSON.
        details: further numbers of the task on the test data, as JSON.
        seconds: of training.
    """

    status: str
    merit: float
    test_merit: float
    excess: float
    test_excess: float
    violations: str
    details: str
    seconds: float

    @property
    def feasible(self) -> bool:
        """Whether all violations on the training data are within their tolerances."""
        return self.excess <= 1


def run(
    task: Task, method: Method, *, seed: int, units: str = "natural", base: str = "adam"
) -> Outcome:
    """Train a task by a method, and judge the end of the run.

    Args:
        task: one of TASKS.
        method: for example `PowerALM()` or `Penalty(10.0)`.
        seed: fixes initialization, batches and noise.
        units: one of UNITS.
        base: "adam" or "sgd" (with momentum).
    """
    torch.manual_seed(seed)
    training = in_units(task.build(torch.Generator().manual_seed(seed)), UNITS[units])
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _train(task, training, method, base)
        status = "trained"
    except FAILURES as error:
        status = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
    return judge(training, status, time.perf_counter() - start)


def _train(task: Task, training: Training, method: Method, base: str) -> None:
    stepper = method(training, base_of(task, base))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        stepper.optimizer, lambda k: (1 + math.cos(math.pi * k / task.steps)) / 2
    )
    for k, batch in enumerate(training.batches, start=1):
        stepper.step(batch)
        schedule.step()
        if k % task.steps_per_epoch == 0 or k == task.steps:
            stepper.end_epoch()


def judge(training: Training, status: str, seconds: float) -> Outcome:
    """Measure the model as it is; a run that failed or diverged has infinite violations."""
    numbers: dict[str, Any] = {
        "merit": training.merit("train"),
        "test_merit": training.merit("test"),
        "excess": training.excess("train"),
        "test_excess": training.excess("test"),
    }
    if status != "trained" or not math.isfinite(numbers["merit"]):
        numbers |= {"excess": math.inf, "test_excess": math.inf}
    found, details = (
        json.dumps({name: float(f"{value:.4g}") for name, value in part.items()})
        for part in (training.violations("train"), training.details())
    )
    return Outcome(status, **numbers, violations=found, details=details, seconds=round(seconds, 2))
