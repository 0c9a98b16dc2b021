"""The registry as a user types it: what it prints, what it suggests, what an editor sees."""

import inspect

import pytest
import torch

from torch_powalm import ConstraintRegistry, PowerALMOptimizer


def registry():
    constraints = ConstraintRegistry()
    constraints.equality("unit_rows", lambda: torch.zeros(3))
    constraints.inequality("class_loss", size=10)
    constraints.inequality("missed", size=1, from_statistics=lambda s: s[:1] / s[1:] - 0.02)
    return constraints


def test_the_registry_prints_its_blocks():
    assert repr(ConstraintRegistry()) == "ConstraintRegistry()"
    assert repr(registry()).splitlines() == [
        "ConstraintRegistry(",
        "  unit_rows: equality, function of the parameters",
        "  class_loss: inequality, size 10, from the batch",
        "  missed: inequality, size 1, from statistics of the batch",
        ")",
    ]


@pytest.mark.parametrize("method", ["equality", "inequality"])
def test_an_editor_can_complete_the_arguments(method):
    parameters = inspect.signature(getattr(ConstraintRegistry, method)).parameters
    batch = ["size", "from_statistics", "latest"]
    assert list(parameters) == ["self", "name", "fn", *batch, "model", "scale", "indexed"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("clas_loss", "; did you mean 'class_loss'?"), ("zebra", "$")],
)
def test_an_unknown_name_suggests_the_nearest_block(name, hint):
    p = torch.ones(2, requires_grad=True)
    constraints = ConstraintRegistry()
    constraints.inequality("class_loss", size=1)
    optimizer = PowerALMOptimizer(torch.optim.SGD([p], lr=0.1), constraints)
    loss, value = p.sum(), p[:1]
    with pytest.raises(KeyError) as error:
        optimizer.augment(loss, **{name: value})
    message = error.value.args[0]
    assert message.startswith(f"augment has no batch constraint {name!r}")
    assert message.endswith(hint) if hint != "$" else "mean" not in message
    with pytest.raises(KeyError, match=r"strict has no batch constraint 'class_los'; did you mean"):
        optimizer.augment(loss, class_loss=value, strict={"class_los": value})
