"""Mutations of nested state: each changes one place of a copy, by a rule that knows no schema."""

import copy
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from experiments.attacks.strange_values import CONSTANTS

Path = tuple[Any, ...]


def places(state: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of every entry, containers included."""
    if path:
        yield path
    if isinstance(state, dict):
        for key, value in state.items():
            yield from places(value, (*path, key))
    elif isinstance(state, list | tuple):
        for i, value in enumerate(state):
            yield from places(value, (*path, i))


def entry(state: Any, path: Path) -> Any:
    """Return the entry at a path."""
    for key in path:
        state = state[key]
    return state


def with_entry(state: Any, path: Path, value: Any) -> Any:
    """Return a copy of the state with another entry at the path."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(state, dict):
        return {k: with_entry(v, rest, value) if k == key else v for k, v in state.items()}
    items = [with_entry(v, rest, value) if i == key else v for i, v in enumerate(state)]
    return type(state)(items)


def _with_first(value: float) -> Callable[[Tensor], Tensor]:
    def change(t: Tensor) -> Tensor:
        t = t.detach().clone()
        t.reshape(-1)[:1] = value
        return t

    return change


class _Stranger(Tensor):
    """A tensor of another type."""


def _inference(t: Tensor) -> Tensor:
    with torch.inference_mode():
        return t + 0


TENSORS: dict[str, Callable[[Tensor], Any]] = {
    "first nan": _with_first(math.nan),
    "last inf": lambda t: _with_first(math.inf)(t.flip(0) if t.dim() else t),
    "first negative": _with_first(-1.0),
    "first huge": _with_first(1e30),
    "all nan": lambda t: torch.full_like(t, math.nan),
    "negated": lambda t: -1 - t.double(),
    "longer": lambda t: torch.cat([t.reshape(-1), t.reshape(-1)[:1]]),
    "shorter": lambda t: t.reshape(-1)[:-1],
    "one more dimension": lambda t: t[None],
    "without dimensions": lambda t: t.reshape(-1)[0] if t.numel() else t[None],
    "half": lambda t: t.half(),
    "integer": lambda t: t.long(),
    "complex numbers": lambda t: t.to(torch.complex64),
    "boolean": lambda t: t > 0,
    "sparse": lambda t: t.to_sparse() if t.dim() else t[None],
    "meta": lambda t: t.to("meta"),
    "as a list": lambda t: t.tolist(),
    "bfloat16": lambda t: t.bfloat16(),
    "single": lambda t: t.float(),
    "double": lambda t: t.double(),
    "with gradient": lambda t: t.double().detach().requires_grad_(),
    "in a graph": lambda t: t.double().detach().requires_grad_() * 1.0,
    "parameter": lambda t: torch.nn.Parameter(t.double().detach()),
    "expanded": lambda t: t.double().reshape(-1)[:1].sum().expand(t.shape),
    "strided": lambda t: torch.stack([t, t], -1)[..., 0],
    "transposed": lambda t: t.transpose(0, -1) if t.dim() else t,
    "quantized": lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8),
    "compressed": lambda t: t.to_sparse_csr() if t.dim() == 2 else t.short(),
    "nested tensors": lambda t: torch.nested.nested_tensor([t.float().reshape(-1)]),
    "conjugated": lambda t: t.to(torch.complex128).conj(),
    "array": lambda t: t.numpy(),
    "inference": _inference,
    "infinite last": lambda t: _with_first(-math.inf)(t.flip(0) if t.dim() else t),
    "tiny": lambda t: t * 1e-320,
    "empty": lambda t: t[:0] if t.dim() else torch.empty(0),
    "shuffled": lambda t: t.flip(0) if t.dim() else -t,
    "minus zero": lambda t: t * 0.0 * -1.0,
    "part of a longer one": lambda t: torch.cat([t.reshape(-1)] * 2)[: t.numel()].view(t.shape),
    "subnormal": lambda t: torch.full_like(t, 5e-324),
    "largest": lambda t: torch.full_like(t, torch.finfo(t.dtype).max),
    "unsigned": lambda t: t.to(torch.uint8),
    "subclass": lambda t: t.as_subclass(_Stranger),
}


NUMBERS: dict[str, Callable[[Any], Any]] = {
    "negated": lambda n: -n - 1,
    "plus half": lambda n: n + 0.5,
    "as a word": lambda n: str(n),
    "as a tensor": lambda n: torch.tensor([float(n)] * 3),
    "in a list": lambda n: [n],
}
CONTAINERS: dict[str, Callable[[Any, random.Random], Any]] = {
    "one removed": lambda c, rng: _without(c, rng),
    "one added": lambda c, rng: {**c, "stranger": 1} if isinstance(c, dict) else [*c, 1.0],
    "one renamed": lambda c, rng: _renamed(c, rng),
    "emptied": lambda c, rng: type(c)(),
    "doubled": lambda c, rng: list(c) * 2,
    "two exchanged": lambda c, rng: _exchanged(c, rng),
}


def _without(container: Any, rng: random.Random) -> Any:
    if not container:
        return None
    gone = rng.choice(list(container) if isinstance(container, dict) else range(len(container)))
    if isinstance(container, dict):
        return {k: v for k, v in container.items() if k != gone}
    return [v for i, v in enumerate(container) if i != gone]


def _renamed(container: Any, rng: random.Random) -> Any:
    if not isinstance(container, dict) or not container:
        return "abc"
    old = rng.choice(list(container))
    return {"renamed" if k == old else k: v for k, v in container.items()}


def _exchanged(container: Any, rng: random.Random) -> Any:
    if len(container) < 2:
        return 0.5
    if isinstance(container, dict):
        a, b = rng.sample(list(container), 2)
        return {**container, a: container[b], b: container[a]}
    items = list(container)
    i, j = rng.sample(range(len(items)), 2)
    items[i], items[j] = items[j], items[i]
    return items


def mutated(state: Any, rng: random.Random) -> tuple[str, Any]:
    """Return a description and a copy of the state with one mutation at a random place."""
    path = rng.choice(list(places(state)))
    value = entry(state, path)
    kinds: dict[str, Callable[[], Any]] = {
        name: lambda constant=constant: copy.copy(constant) for name, constant in CONSTANTS.items()
    }
    if isinstance(value, Tensor):
        kinds |= {name: lambda change=change: change(value) for name, change in TENSORS.items()}
    elif isinstance(value, int | float) and not isinstance(value, bool):
        kinds |= {name: lambda change=change: change(value) for name, change in NUMBERS.items()}
    elif isinstance(value, dict | list | tuple):
        containers = CONTAINERS.items()
        kinds |= {name: lambda change=change: change(value, rng) for name, change in containers}
    name = rng.choice(list(kinds))
    try:
        changed = kinds[name]()
    except (RuntimeError, TypeError):  # a tensor that has no such form
        name, changed = "nan in place", math.nan
    return f"{name} at {path}", with_entry(state, path, changed)
