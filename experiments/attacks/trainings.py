"""Random trainings, each run by the optimizer and, in step with it, by a loop written by hand.

In float64, parameters, multipliers and penalties must agree to 1e-8 after every step. What a
training measures (scales, penalty, longest gradient) is read off; everything else is computed from
formulas in `hand_loop.py`.
"""

import copy
import io
import random
import warnings

import torch
from torch import Tensor

from experiments.attacks.findings import FindingError
from experiments.attacks.hand_loop import F64
from experiments.attacks.hand_training import ByHand
from experiments.attacks.optimizer_training import Ours
from experiments.attacks.random_case import Case

TOLERANCE = {F64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 0.1}


class DifferenceError(FindingError):
    """Two numbers differ."""

    size = 0.0


def attack_by_hand(rng: random.Random) -> str:
    """Run a random training twice, and compare after every step."""
    case = Case(rng)
    ours, hand = Ours(case), ByHand(case)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            end = _compare(case, ours, hand)
    except DifferenceError as error:
        if error.size > _rounding(case):
            raise FindingError(f"{error}; {case}") from error
        end = ", rounding errors grow"
    except FindingError as error:
        raise FindingError(f"{error}; {case}") from error
    except Exception as error:
        raise FindingError(f"{type(error).__name__} {error}; {case}") from error
    kind = "measured" if case.automatic else "given"
    return f"{str(case.dtype).removeprefix('torch.')}, {kind} units{end}"


def _compare(case: Case, ours: Ours, hand: ByHand) -> str:
    for step in range(case.steps):
        case.at = step
        if step in case.saved:
            ours = _resumed(case, ours)
        optimizer, seen = ours.optimizer, len(ours.updates)
        longest = optimizer.units.longest
        hand.measured = not optimizer.units.measuring
        started = optimizer.dual.started
        ours.step(step)
        if any(bool((p.abs() > 1e3).any()) for p in ours.params):
            return ", diverging"  # and with it every rounding error
        if case.automatic and optimizer.dual.started and not started:  # in this step
            hand.dual.far, hand.dual.beta = optimizer.dual.far, optimizer.dual.beta_1
            if optimizer.dual.scale is not None:
                hand.dual.scale = optimizer.dual.scale.to(F64)
        hand.step(step, ours, longest)
        for record in ours.updates[seen:]:
            if case.automatic and optimizer.dual.scale is not None:
                hand.dual.scale = optimizer.dual.scale.to(F64)
            part = ours.parts_of_updates.pop() if ours.parts_of_updates else None
            told = hand.update(part, record[2] if case.automatic else None)
            pair = (torch.tensor(t, dtype=F64) for t in (record[:2], told))
            _same(case, f"record at step {step}", *pair)
        for p, q in zip(ours.params, hand.params, strict=True):
            _same(case, f"parameters at step {step}", p.detach(), q.detach())
        if optimizer.dual.started:
            try:
                _same(case, f"multipliers at step {step}", optimizer.dual.y, hand.dual.y)
            except FindingError:
                if hand.dual.nearest > (1e-12 if case.dtype is F64 else TOLERANCE[case.dtype]):
                    raise
                return ", a rounding error at a boundary decides"  # a move by |r|^ν there
            if not case.automatic:
                betas = ([optimizer.dual.beta], [hand.dual.beta])
                _same(case, f"penalty at step {step}", *(torch.tensor(b, dtype=F64) for b in betas))
    return ""


def _same(case: Case, what: str, a: Tensor, b: Tensor) -> None:
    a, b = a.to(F64), b.to(F64)
    error = float((a - b).abs().max()) if a.numel() else 0.0
    if not error <= TOLERANCE[case.dtype] * (1 + float(b.abs().max() if b.numel() else 0.0)):
        found = DifferenceError(f"{what} differ by {error:.2g}")
        found.size = error
        raise found


def _rounding(case: Case) -> float:
    """Return how large a difference by rounding may be, from how it grows in float64."""
    exact = copy.copy(case)
    exact.dtype = F64
    factor = 1e3 if case.dtype is F64 else 10 * torch.finfo(case.dtype).eps / 1e-14
    return factor * _growth(exact, case.at + 1)


def _growth(case: Case, steps: int) -> float:
    """Return how far changes by a rounding error move the parameters of a training.

    In a line search a rounding error may decide which point is taken, so several are tried.
    """
    return max(_moved(case, steps, seed) for seed in range(12 if case.searches else 1))


def _moved(case: Case, steps: int, seed: int) -> float:
    runs = Ours(case), Ours(case)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in runs[1].params:
            noise = torch.randn(p.shape, generator=generator, dtype=F64) if seed else 1.0
            p.mul_(1 + 1e-14 * noise)
    furthest = 0.0
    for step in range(steps):
        for run in runs:
            run.step(step)
        pairs = zip(runs[0].params, runs[1].params, strict=True)
        furthest = max(furthest, *(float((p - q).detach().abs().max()) for p, q in pairs))
    return furthest


def _resumed(case: Case, old: Ours) -> Ours:
    """Return the training, continued from what it has saved in a file."""
    new, file = Ours(case), io.BytesIO()
    states = {"model": old.model, "optimizer": old.optimizer, "schedule": old.schedule}
    states["scaler"] = old.scaler
    torch.save({name: part.state_dict() for name, part in states.items()}, file)
    state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    for name in states:
        getattr(new, name).load_state_dict(copy.copy(state[name]))
    new.updates = list(old.updates)
    return new
