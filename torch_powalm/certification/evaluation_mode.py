"""The models that a function uses, and their evaluation mode."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

_DEPTH = 3  # of functions that call functions


def check_evaluation_mode(measure: Any, model: nn.Module | None) -> None:
    """Raise if the model is in training mode; without one, look for models that `measure` uses."""
    for name, module in used_models(measure, model).items():
        if module.training:
            raise ValueError(
                f"{name} must be in evaluation mode (call {name}.eval() first), got training mode"
            )


@contextmanager
def evaluation_mode(measure: Callable[..., Any], model: nn.Module | None) -> Iterator[None]:
    """Put the models in evaluation mode for a while."""
    modules = [m for found in used_models(measure, model).values() for m in found.modules()]
    before = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, training in zip(modules, before, strict=True):
            module.training = training


def used_models(measure: Any, model: nn.Module | None) -> dict[str, nn.Module]:
    """Return the models by the name under which `measure` uses them."""
    if model is not None:
        return {"model": model}
    if isinstance(measure, nn.Module):
        return {"measure": measure}
    return _models(measure, _DEPTH)


def _models(fn: Any, depth: int) -> dict[str, nn.Module]:
    found: dict[str, Any] = {}
    if isinstance(fn, functools.partial):
        found |= {f"measure.args[{i}]": value for i, value in enumerate(fn.args)}
        found |= fn.keywords
        fn = fn.func
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, nn.Module):
        found["measure.__self__"] = owner
    elif owner is not None:
        found |= {f"measure.__self__.{name}": v for name, v in vars_of(owner).items()}
    elif not inspect.isroutine(fn):  # an object with __call__
        found |= {f"measure.{name}": value for name, value in vars_of(fn).items()}
    try:
        names = inspect.getclosurevars(fn)
    except TypeError:  # not a Python function
        names = None
    if names is not None:
        found |= {**names.globals, **names.nonlocals}
    models = {name: value for name, value in found.items() if isinstance(value, nn.Module)}
    for value in found.values():
        if depth > 1 and inspect.isfunction(value) and value is not fn:
            models = _models(value, depth - 1) | models
    return models


def vars_of(value: object) -> dict[str, Any]:
    """Return the attributes of an object that has a dictionary."""
    return dict(getattr(value, "__dict__", {}))
