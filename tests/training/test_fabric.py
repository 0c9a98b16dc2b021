"""Training under Lightning Fabric."""

import pytest

pytest.importorskip("lightning")
from collections.abc import Iterator
from typing import Any

import torch
from lightning.fabric import Fabric
from torch.nn.utils import clip_grad_norm_

from tests.training.small_training import (
    F64,
    HYBRID,
    Net,
    Twin,
    adam,
    assert_same,
    batches,
    float32_batches,
    measure,
    multipliers,
    train,
    train_twin,
    wrapped,
)
from torch_powalm import PowerALMOptimizer

# Fabric


@pytest.fixture
def double() -> Iterator[Fabric]:
    """A Fabric in float64; it gives outputs of modules the default type, so that has to follow."""
    torch.set_default_dtype(F64)
    yield Fabric(accelerator="cpu", devices=1, precision="64-true")
    torch.set_default_dtype(torch.float32)


def fabric_epoch(fabric: Fabric, model: Any, optimizer: Any, data: Any) -> None:
    """One epoch through the object that Fabric hands out."""
    for x, target in data:
        optimizer.zero_grad()
        loss, values = measure(model, x, target)
        fabric.backward(optimizer.augment(loss, **values))
        optimizer.step()
    optimizer.update_multipliers()


def test_fabric_trains_as_the_full_lagrangian(double):
    ours, theirs = Net(), Net()
    model, optimizer = double.setup(ours, wrapped(ours))
    assert isinstance(optimizer, PowerALMOptimizer)
    for _ in range(3):
        fabric_epoch(double, model, optimizer, batches())
    twin = Twin(HYBRID, 0.7)
    train_twin(theirs, adam(theirs), twin)
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)


def test_fabric_shows_the_counters_of_the_optimizer_it_wraps(double):
    ours = Net()
    inner = wrapped(ours)
    model, optimizer = double.setup(ours, inner)
    for _ in range(2):
        fabric_epoch(double, model, optimizer, batches())
        assert optimizer.epoch.steps == inner.epoch.steps == 0
    for x, target in batches():
        optimizer.zero_grad()
        loss, values = measure(model, x, target)
        double.backward(optimizer.augment(loss, **values))
        optimizer.step()
    assert optimizer.epoch.steps == inner.epoch.steps == 3
    assert optimizer.should_update(steps=3)
    assert optimizer.epoch.gradient_norm == inner.epoch.gradient_norm < float("inf")


@pytest.mark.parametrize("total", [False, True], ids=["loss only", "total"])
def test_fabric_clips_as_a_plain_loop(double, total):
    ours, theirs = Net(), Net()
    model, optimizer = double.setup(ours, wrapped(ours))
    plain = wrapped(theirs)
    for x, target in batches():
        optimizer.zero_grad()
        loss, values = measure(model, x, target)
        double.backward(optimizer.augment(loss, **values))
        if total:
            optimizer.backward_constraints()
        double.clip_gradients(model, optimizer, max_norm=0.1)
        optimizer.step()

        plain.zero_grad()
        loss, values = measure(theirs, x, target)
        plain.augment(loss, **values).backward()
        if total:
            plain.backward_constraints()
        clip_grad_norm_(theirs.parameters(), 0.1)
        plain.step()
    assert_same(ours, theirs)


def test_fabric_saves_and_loads_the_multipliers(double, tmp_path):
    straight = Net()
    reference = wrapped(straight)
    train(straight, reference, epochs=4)

    path = tmp_path / "checkpoint"
    for load in (False, True):
        net = Net()
        model, optimizer = double.setup(net, wrapped(net))
        if load:
            double.load(path, {"model": model, "optimizer": optimizer})
        for _ in range(2):
            fabric_epoch(double, model, optimizer, batches())
        if not load:
            double.save(path, {"model": model, "optimizer": optimizer})
    assert_same(net, straight)
    assert_same(multipliers(optimizer), multipliers(reference))
    assert optimizer.dual.k == 5


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_fabric_in_bfloat16_keeps_float32_multipliers(precision):
    net = Net().float()
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    model, optimizer = fabric.setup(net, wrapped(net))
    fabric_epoch(fabric, model, optimizer, float32_batches())
    y = multipliers(optimizer)
    assert y.dtype == torch.float32
    reference = Net()
    plain = wrapped(reference)
    train(reference, plain, epochs=1)
    # Eight bits of mantissa: a check of magnitudes.
    assert (y - multipliers(plain)).norm() < 0.1 * y.norm()
