"""One timed run of a method on a task: its status, its residuals by the ruler, calls and seconds.

Calls are counted by `Problem.oracle`; with a hand-written oracle, f and ∇f are one call. Methods
without a stopping test are stopped at the first point they report that passes the ruler; the time
of these checks is not counted.
"""

import gc
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.benchmarks.ruler import Answer, Measured, measure
from torch_powalm import Problem

GRACE = 1.3  # a method is interrupted after this many times its budget


class Task(NamedTuple):
    """A problem to solve.

    Args:
        name: as in the tables.
        seed: of the instance.
        x_1: start.
        eps: tolerance of both residuals.
        plain: builds the problem from functions that autograd differentiates.
        by_hand: builds it from hand-written oracles; None if there are none.
    """

    name: str
    seed: int
    x_1: Tensor
    eps: float
    plain: Callable[[], Problem]
    by_hand: Callable[[], Problem] | None = None


class Outcome(NamedTuple):
    """The outcome of a run.

    Args:
        status: "reached", "not reached", "time-out", "cannot: …" or "error: …".
        measured: residuals by the ruler; None if there is no point.
        function_calls: evaluations of f.
        gradient_calls: evaluations of ∇f.
        wall: seconds.
        cpu: seconds of this process.
    """

    status: str
    measured: Measured | None
    function_calls: int
    gradient_calls: int
    wall: float
    cpu: float

    @property
    def reached(self) -> bool:
        """Whether the residuals by the ruler are within the tolerance."""
        return self.status == "reached"


class UnsuitedError(Exception):
    """Raised by a method that cannot express a problem, with the reason."""


class _Over(BaseException):  # not an Exception: some methods catch all of these
    """Ends a run: the point passes, or the time is up."""


class _TimeUp(_Over):
    """Ends a run whose time is up."""


class RunClock:
    """The clock of a run, and the stopping test of methods that have none.

    Args:
        task: the problem.
        budget: seconds of CPU time, which does not depend on the load of the machine.
    """

    def __init__(self, task: Task, budget: float) -> None:
        self.task, self.budget = task, budget
        self.judge = (task.by_hand or task.plain)()
        self.best: Answer | None = None
        self.wall = self.cpu = 0.0
        self._paused = 0.0
        self._runs = False

    def start(self) -> None:
        """Start the clock."""
        self._runs = True
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        """Stop the clock; does nothing if it is stopped already."""
        if self._runs:
            self.wall += time.perf_counter() - self._wall
            self.cpu += time.process_time() - self._cpu
        self._runs = False

    @property
    def left(self) -> float:
        """Seconds left."""
        return self.budget - self.cpu - (time.process_time() - self._cpu)

    def check(self, x: Tensor, y: Tensor | None = None) -> None:
        """End the run if the time is up or x passes; the clock is paused meanwhile.

        Checks are skipped once they have taken more than 5 s plus 0.3 times the time of the run.
        """
        self.stop()
        start = time.process_time()
        self.best = Answer(x.detach().clone(), y)
        if self.cpu > self.budget:
            raise _TimeUp
        if self._paused <= 5.0 + 0.3 * self.cpu:
            with torch.no_grad():
                inside = self.judge.g.prox(self.best.x, 1.0)
                r = self.judge.violation(self.judge.oracle.at(inside))
            if torch.linalg.vector_norm(r).item() <= self.task.eps:
                found = measure(self.judge, self.best, self.task.eps)
                if max(found.primal, found.dual) <= self.task.eps:
                    raise _Over
        self._paused += time.process_time() - start
        self.start()


Solve = Callable[..., Answer]


def run(solve: Solve, task: Task, budget: float, *, autograd: bool, **settings: Any) -> Outcome:
    """Run a method on a task and measure the point it returns.

    Args:
        solve: the method, called with (problem, x_1, eps, clock, **settings).
        task: the problem.
        budget: seconds of CPU time.
        autograd: use the plain functions even if there are hand-written oracles.
        settings: of the method.
    """
    if autograd or task.by_hand is None:
        problem = task.plain()
    else:
        problem = task.by_hand()
    gc.collect()
    clock, status, answer = RunClock(task, budget), "not reached", None
    clock.start()
    try:
        with _interrupt(GRACE * budget + 2):
            answer = solve(problem, task.x_1.clone(), task.eps, clock, **settings)
        clock.stop()
    except _Over as over:
        clock.stop()
        answer = clock.best
        status = "time-out" if isinstance(over, _TimeUp) else status
    except UnsuitedError as reason:
        return Outcome(f"cannot: {reason}", None, 0, 0, 0.0, 0.0)
    except Exception as error:
        clock.stop()
        status, answer = f"error: {type(error).__name__}: {_first_line(error)}", clock.best
    measured = measure(clock.judge, answer, task.eps) if answer is not None else None
    if measured is not None and max(measured.primal, measured.dual) <= task.eps:
        status = "reached"
    elif clock.cpu >= budget:
        status = "time-out"
    calls = problem.oracle.calls
    return Outcome(status, measured, calls.function, calls.gradient, clock.wall, clock.cpu)


def warm_up() -> None:
    """Make torch import what its optimizers need at their first step, which takes seconds."""
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([x])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    x.sum().backward()
    optimizer.step()
    scheduler.step()


@contextmanager
def _interrupt(seconds: float) -> Iterator[None]:
    """Interrupt code that never checks the clock after some seconds of CPU time.

    A timer of the wall clock reads the CPU time. With a timer of the CPU clock, Linux would update
    that clock at its ticks only, and parts of the pauses would be counted.
    """
    end = time.process_time() + seconds

    def look(number: int, frame: FrameType | None) -> None:
        if time.process_time() > end:
            raise _TimeUp

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")[:100]
