"""Mutated states of MultiplierState, of solves and of BestFeasible."""

import copy
import random

import torch

from experiments.attacks.findings import FindingError
from experiments.attacks.mutations import mutated
from experiments.attacks.small_training import F64, Training, same, trained
from experiments.attacks.structure_mutations import restructured
from torch_powalm import BestFeasible, MultiplierState, Problem, power_alm


def attack_bytes(rng: random.Random) -> str:
    """Damage the bytes of a MultiplierState."""
    training = Training("adam", "given")
    training.advance(5)
    multipliers = MultiplierState(training.optimizer)
    content = bytearray(multipliers.state_dict()["powalm"])
    before = copy.deepcopy(training.optimizer.state_dict())
    for _ in range(rng.choice([1, 1, 3, 50])):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    damaged = bytes(content[: rng.choice([len(content), len(content), len(content) // 2])])
    try:
        multipliers.load_state_dict({"powalm": damaged})
    except ValueError:
        pass
    except Exception as error:
        raise FindingError(f"bytes: {type(error).__name__} {error}") from error
    if not same(before, training.optimizer.state_dict()):
        raise FindingError("bytes: loaded wrong")
    return "refused"


def attack_solution(rng: random.Random) -> str:
    """Mutate the state of a solve."""
    problem = Problem(
        lambda x: 1e3 * (x - 1).square().sum(),
        equality=lambda x: (x @ x - 1).reshape(1),
        inequality=lambda x: 300 * x[:2] - 0.5,
    )
    x = torch.tensor([0.3, 0.2, 0.7], dtype=F64)
    state = power_alm(problem, x, max_outer=2, nu=0.8).state
    what, bad = mutated(state, rng)
    try:
        solution = power_alm(problem, x, state=bad, nu=0.8, max_outer=3)
    except (ValueError, TypeError) as error:
        if "state" not in str(error):
            raise FindingError(f"solution: {what}: {error}") from error
        return "refused"
    except Exception as error:
        raise FindingError(f"solution: {what}: {type(error).__name__} {error}") from error
    if not bool(solution.x.isfinite().all() and solution.y.isfinite().all()):
        raise FindingError(f"solution: {what}: not finite")
    return "loaded"


def attack_best(rng: random.Random) -> str:
    """Mutate the state of a BestFeasible."""
    training = trained("adam", "given", 7)
    best = BestFeasible(training.model, training.optimizer, tolerance=9.0)
    best.update(rng.random())
    state = copy.deepcopy(best.state_dict())
    best.update(0.0)
    before = copy.deepcopy(best.state_dict())
    if rng.random() < 0.3:
        what, bad = restructured(state, before, rng)
    else:
        what, bad = mutated(state, rng)
    try:
        best.load_state_dict(bad)
    except ValueError as error:
        if not same(before, best.state_dict()):
            raise FindingError(f"best: {what}: refused, but changed") from error
        return "refused"
    except Exception as error:
        raise FindingError(f"best: {what}: {type(error).__name__} {error}") from error
    if not same(bad, best.state_dict()):
        raise FindingError(f"best: {what}: loaded, but not as it is")
    try:
        best.restore()
    except RuntimeError as error:
        if "no state has been kept" not in str(error):
            raise FindingError(f"best: {what}: {error}") from error
    return "loaded"
