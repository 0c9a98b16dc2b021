"""Mutations of more than one place: exchanged, shared, missing and foreign parts of a state."""

import copy
import random
from collections import OrderedDict
from typing import Any

from torch import Tensor

from experiments.attacks.mutations import Path, entry, places, with_entry


def restructured(state: Any, donor: Any, rng: random.Random) -> tuple[str, Any]:
    """Return a description and a copy of the state with one such mutation.

    Args:
        state: the state.
        donor: the state of another run, from which parts may come.
        rng: source of randomness.
    """
    kinds = (_exchanged, _shared, _truncated, _from_donor, _other_containers, _several_constants)
    kind = rng.choice(kinds)
    what, found = kind(state, donor, rng)
    return f"{kind.__name__[1:]}: {what}", found


def _exchanged(state: Any, donor: Any, rng: random.Random) -> tuple[str, Any]:
    """Exchange two places, also of different depths."""
    a, b = rng.sample(list(places(state)), 2)
    if a == b[: len(a)] or b == a[: len(b)]:
        return f"{b} in the place of {a}", with_entry(state, a, copy.deepcopy(entry(state, b)))
    first, second = entry(state, a), entry(state, b)
    return f"{a} and {b}", with_entry(with_entry(state, a, second), b, first)


def _shared(state: Any, donor: Any, rng: random.Random) -> tuple[str, Any]:
    """Let two or more places of one type and shape hold the same object."""
    found: dict[Any, list[Path]] = {}
    for path in places(state):
        value = entry(state, path)
        if isinstance(value, Tensor):
            found.setdefault((value.shape, value.dtype), []).append(path)
    many = [paths for paths in found.values() if len(paths) > 1]
    if not many:
        return _from_donor(state, donor, rng)
    paths = rng.choice(many)
    chosen = rng.sample(paths, min(len(paths), rng.choice([2, 3, 9])))
    for path in chosen[1:]:
        state = with_entry(state, path, entry(state, chosen[0]))
    return f"one tensor at {chosen}", state


def _truncated(state: Any, donor: Any, rng: random.Random) -> tuple[str, Any]:
    """Drop everything after a place of a container, in one or in all containers of a kind."""
    boxes = [p for p in [(), *places(state)] if isinstance(entry(state, p), dict | list | tuple)]
    path = rng.choice([p for p in boxes if entry(state, p)])
    box = entry(state, path)
    left = rng.randrange(len(box))
    short = dict(list(box.items())[:left]) if isinstance(box, dict) else box[:left]
    return f"{left} entries left of {path}", with_entry(state, path, short)


def _from_donor(state: Any, donor: Any, rng: random.Random) -> tuple[str, Any]:
    """Take a part of another run, from its place or from anywhere."""
    path = rng.choice(list(places(state)))
    same = [p for p in places(donor) if p == path]
    origin = same[0] if same and rng.random() < 0.7 else rng.choice(list(places(donor)))
    return f"{origin} of another run at {path}", with_entry(state, path, entry(donor, origin))


def _other_containers(state: Any, donor: Any, rng: random.Random) -> tuple[str, Any]:
    """Give a container another type, or its keys another type."""
    boxes = [p for p in places(state) if isinstance(entry(state, p), dict | list | tuple)]
    path = rng.choice(boxes)
    box = entry(state, path)
    forms: dict[str, Any]
    if isinstance(box, dict):
        forms = {
            "ordered": OrderedDict(box),
            "items": list(box.items()),
            "keys as words": {str(k): v for k, v in box.items()},
            "keys as bytes": {str(k).encode(): v for k, v in box.items()},
            "reversed": dict(reversed(list(box.items()))),
            "keys": set(box),
            "inside": {"state": box},
        }
    else:
        forms = {
            "tuple": tuple(box),
            "list": list(box),
            "mapping": dict(enumerate(box)),
            "reversed": box[::-1],
            "generator": iter(box),
            "word": "".join(map(str, box)),
            "inside": [box],
        }
    form = rng.choice(list(forms))
    return f"{form} at {path}", with_entry(state, path, forms[form])


def _several_constants(state: Any, donor: Any, rng: random.Random) -> tuple[str, Any]:
    """Replace several numbers at once by one value."""
    numbers = [p for p in places(state) if isinstance(entry(state, p), int | float)]
    chosen = rng.sample(numbers, min(len(numbers), rng.choice([2, 3, 5])))
    value = rng.choice([0, 0.0, 1, -1, 2**31, 2**53, 1e-300, 1e150, "1", True, None])
    for path in chosen:
        state = with_entry(state, path, value)
    return f"{value!r} at {chosen}", state
