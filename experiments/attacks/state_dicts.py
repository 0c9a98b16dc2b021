"""Mutated state dicts of trainings and solves: each is refused by name, or loaded as it is.

A load that raises must change nothing. After a load that succeeds, the state must be exactly what
the mutated one says, and the next steps and the update must be finite or raise FloatingPointError
(a learning rate of 1e300 is a number like any other).
"""

import copy
import random
from typing import Any

from torch import Tensor

from experiments.attacks.findings import FindingError
from experiments.attacks.mutations import mutated
from experiments.attacks.small_training import BASES, SETTINGS, Training, same, trained
from experiments.attacks.structure_mutations import restructured


def attack_training(rng: random.Random) -> str:
    """Mutate one state dict of a training, and return what became of it."""
    base, settings = rng.choice(list(BASES)), rng.choice(list(SETTINGS))
    source = trained(base, settings, rng.choice([0, 1, 7, 22, 30]))
    target = trained(base, settings, rng.choice([0, 3, 25]))
    state = copy.deepcopy(source.optimizer.state_dict())
    where = rng.choice(["powalm", "powalm", "whole", "base", "sharded"])
    other = trained(rng.choice(list(BASES)), rng.choice(list(SETTINGS)), rng.choice([7, 22]))
    donor = copy.deepcopy(other.optimizer.state_dict())

    def mutate(part: Any, from_: Any) -> tuple[str, Any]:
        return restructured(part, from_, rng) if rng.random() < 0.35 else mutated(part, rng)

    if where == "sharded":
        what, part = mutate(state["powalm"], donor["powalm"])
        loader = target.optimizer.load_powalm_state_dict
        wanted = part
    elif where == "powalm":
        what, part = mutate(state["powalm"], donor["powalm"])
        state = wanted = {**state, "powalm": part}
        loader = target.optimizer.load_state_dict
    elif where == "base":
        ours = state.pop("powalm")
        what, part = mutate(state, {k: v for k, v in donor.items() if k != "powalm"})
        state = wanted = {**part, "powalm": ours} if isinstance(part, dict) else part
        loader = target.optimizer.load_state_dict
    else:
        what, state = mutate(state, donor)
        wanted, loader = state, target.optimizer.load_state_dict
    label = f"{base}, {settings}, {where}: {what}"
    before = copy.deepcopy(target.optimizer.state_dict())
    try:
        loader(copy.copy(wanted))
    except ValueError as error:
        if "state_dict" not in str(error) and "constraint" not in str(error):
            raise FindingError(f"{label}: refused without a name: {error}") from error
        if not same(before, target.optimizer.state_dict()):
            raise FindingError(f"{label}: refused, but the state has changed") from error
        target.advance(1)
        return "refused"
    except Exception as error:
        raise FindingError(f"{label}: {type(error).__name__} {error}") from error
    return _check_loaded(target, wanted, where == "sharded", label)


def _check_loaded(target: Training, wanted: Any, ours_alone: bool, label: str) -> str:
    """Raise unless what was loaded is what the state said, and training goes on."""
    found = target.optimizer.state_dict()
    if "powalm" not in wanted and not ours_alone:
        return "loaded without multipliers, with a warning"
    ours = wanted if ours_alone else wanted["powalm"]
    if not same(ours, found["powalm"]):
        raise FindingError(f"{label}: loaded, but not as it is")
    if not ours_alone:
        if not same(wanted["state"], found["state"]):
            raise FindingError(f"{label}: the state of the base is not as it is")
        for group, loaded in zip(wanted["param_groups"], found["param_groups"], strict=True):
            settings = {key: value for key, value in group.items() if key != "params"}
            if not same(settings, {key: loaded[key] for key in settings}):
                raise FindingError(f"{label}: hyperparameters are not as they are")
    twin = _twin(target, wanted) if "shared" in label and not ours_alone else None
    try:
        target.advance(2)
        target.optimizer.update_multipliers()
        target.advance(1)
    except (FloatingPointError, OverflowError):  # the second by a base, of its hyperparameters
        return "loaded, then stopped by name"
    except Exception as error:
        raise FindingError(f"{label}: loaded, then {type(error).__name__} {error}") from error
    if not target.finite():
        raise FindingError(f"{label}: loaded, then not finite")
    if twin is not None:
        twin.advance(2)
        twin.optimizer.update_multipliers()
        twin.advance(1)
        if not same(twin.model.state_dict(), target.model.state_dict()):
            raise FindingError(f"{label}: loaded tensors that change each other")
    return "loaded"


def _twin(target: Training, state: Any) -> Training:
    """Return a training like the target, which has loaded a copy without shared memory."""
    twin = Training(target.base_name, target.settings_name)
    twin.model.load_state_dict(target.model.state_dict())
    twin.done = target.done

    def own(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: own(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(own(item) for item in value)
        return value.detach().clone() if isinstance(value, Tensor) else value

    twin.optimizer.load_state_dict(own(state))
    return twin
