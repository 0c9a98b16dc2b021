"""No graph is kept alive, and memory does not grow."""

import gc
import weakref

import pytest
import torch
from torch import Tensor

from tests.training.small_training import Net, batches, constrained, registry, train
from tests.training.test_augmented_gradient import BASES
from torch_powalm import ConstraintRegistry


@pytest.mark.parametrize("end", ["step", "discard", "no grad"])
def test_no_graph_is_kept_alive(end):
    model, refs = Net(), []

    def remember(value):
        refs.append(weakref.ref(value))
        return value

    constraints = ConstraintRegistry()
    constraints.equality("unit_rows", lambda: remember(model.unit_rows()))
    constraints.equality("balance", size=1)
    optimizer = constrained(BASES["adam"](model.parameters()), constraints, nu=0.7)
    for x, _ in batches():
        optimizer.zero_grad()
        with torch.set_grad_enabled(end != "no grad"):
            activation = remember(model(x))
            loss = optimizer.augment(activation.square().mean(), balance=activation[:, 0].mean())
        if end == "step":
            loss.backward()
            optimizer.step()
        del activation, loss
    gc.collect()
    assert len(refs) >= 4
    assert all(ref() is None for ref in refs)


def test_memory_does_not_grow_with_the_number_of_steps():
    """Tensors alive after ten epochs are as many as after two."""
    model = Net()
    optimizer = constrained(BASES["adam"](model.parameters()), registry(model), nu=0.7)

    def alive() -> int:
        gc.collect()
        return sum(issubclass(type(o), Tensor) for o in gc.get_objects())

    train(model, optimizer, epochs=2)
    after_two = alive()
    train(model, optimizer, epochs=8)
    assert alive() <= after_two
