"""Ctrl-C at random moments of a solve, a training and a save: nothing is lost, and all goes on."""

import contextlib
import io
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from experiments.attacks.findings import FindingError
from experiments.attacks.small_training import BASES, SETTINGS, Training, same, trained
from torch_powalm import Problem, Status, load_checkpoint, power_alm, save_checkpoint


def _raise(*args: Any) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _ctrl_c(seconds: float) -> Iterator[None]:
    """Raise KeyboardInterrupt in this thread after some seconds, as Ctrl-C does."""
    before = signal.signal(signal.SIGALRM, _raise)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def attack_interrupt(rng: random.Random) -> str:
    """Interrupt something."""
    return rng.choice([_solve, _solve, _train, _save])(rng)


def _solve(rng: random.Random) -> str:
    """What has been reached is returned, and the run goes on from there."""
    n = rng.choice([2, 20, 300])
    weights = torch.linspace(1, 30, n, dtype=torch.float64)
    problem = Problem(
        lambda x: 0.5 * (x * weights) @ x - x.sum() + 0.01 * (x**4).sum(),
        equality=lambda x: (x @ x - 1).reshape(1),
        inequality=lambda x: 0.1 - x[:1],
    )
    x_1 = torch.full((n,), 2.0, dtype=torch.float64)
    settings = {"nu": rng.choice([1.0, 0.7]), "eps_phi": 1e-6, "eps_A": 1e-6}
    records: list[Any] = []
    callback = lambda record, x: records.append(record)  # noqa: E731
    whole = _seconds(lambda: power_alm(problem, x_1, **settings))
    try:
        with _ctrl_c(rng.uniform(0, 1.1 * whole)):
            solution = power_alm(problem, x_1, callback=callback, **settings)
    except KeyboardInterrupt:
        if records:
            raise FindingError(f"{len(records)} iterations lost, n {n}, {settings}") from None
        return "a solve, before its first iteration"
    if solution.status is not Status.INTERRUPTED:
        return f"a solve, too late: {solution.status.value}"
    if solution.residuals != problem.residuals(solution.x, solution.y):
        raise FindingError("the residuals are not those of the point")
    rest = power_alm(problem, solution.state["x"], state=solution.state, **settings)
    if not rest.converged:
        raise FindingError(f"the rest ends with {rest.status}, n {n}, {settings}")
    return "a solve, and the rest converges"


def _train(rng: random.Random) -> str:
    """What is saved afterwards loads, and the training goes on."""
    base, settings = rng.choice(list(BASES)), rng.choice(list(SETTINGS))
    start = rng.choice([0, 3, 17])
    whole = _seconds(lambda: trained(base, settings, start).advance(12))
    training, label = trained(base, settings, start), f"{base}, {settings}, from {start}"
    try:
        with _ctrl_c(rng.uniform(0, whole)):
            training.advance(12)
    except KeyboardInterrupt:
        pass
    try:
        file = io.BytesIO()
        torch.save([training.model.state_dict(), training.optimizer.state_dict()], file)
        model, state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        other = Training(base, settings)
        other.model.load_state_dict(model)
        other.optimizer.load_state_dict(state)
        other.done = training.done
        for run in (other, training):
            run.advance(3)
            run.optimizer.update_multipliers()
            run.advance(2)
            if not run.finite():
                raise FindingError("not finite")
    except Exception as error:
        raise FindingError(
            f"{label}, step {training.done}: {type(error).__name__} {error}"
        ) from error
    return "a training, saved and continued"


def _save(rng: random.Random) -> str:
    """The file holds the old state or the new one, and the next save leaves nothing else."""
    old, new = ({"step": i, "w": torch.full((200_000,), float(i))} for i in (1, 2))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "last.ckpt")
        whole = _seconds(lambda: save_checkpoint(old, path))
        try:
            with _ctrl_c(rng.uniform(0, whole)):
                save_checkpoint(new, path)
        except KeyboardInterrupt:
            pass
        found = load_checkpoint(path)
        if not (same(found, old) or same(found, new)):
            raise FindingError("the file is neither the old nor the new one")
        save_checkpoint(new, path)
        left = sorted(p.name for p in Path(folder).iterdir())
        if left != ["last.ckpt"] or not same(load_checkpoint(path), new):
            raise FindingError(f"left: {left}")
        return "a save"
