"""Training under Hugging Face accelerate."""

import pytest

pytest.importorskip("accelerate")
from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import optim
from torch.nn.utils import clip_grad_norm_

from tests.training.small_training import (
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

# accelerate


@pytest.fixture
def accelerate() -> Iterator[Callable[..., Accelerator]]:
    """Builds accelerators; their state is global and is taken down afterwards."""
    yield lambda **settings: Accelerator(cpu=True, **settings)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    PartialState._reset_state()


def accelerated_epoch(accelerator: Accelerator, model: Any, prepared: Any) -> None:
    """One epoch; augment() belongs to the optimizer that accelerate has wrapped."""
    optimizer = prepared.optimizer
    for x, target in batches():
        prepared.zero_grad()
        loss, values = measure(model, x, target)
        accelerator.backward(optimizer.augment(loss, **values))
        prepared.step()
    optimizer.update_multipliers()


def test_accelerate_trains_as_the_full_lagrangian(accelerate):
    ours, theirs = Net(), Net()
    accelerator = accelerate()
    model, prepared = accelerator.prepare(ours, wrapped(ours))
    assert isinstance(prepared.optimizer, PowerALMOptimizer)
    for _ in range(3):
        accelerated_epoch(accelerator, model, prepared)
    twin = Twin(HYBRID, 0.7)
    train_twin(theirs, adam(theirs), twin)
    assert_same(ours, theirs)
    assert_same(multipliers(prepared.optimizer), twin.y)


@pytest.mark.parametrize("total", [False, True], ids=["loss only", "total"])
def test_accelerate_accumulates_and_clips_as_a_plain_loop(accelerate, total):
    ours, theirs = Net(), Net()
    accelerator = accelerate(gradient_accumulation_steps=3)
    optimizer = wrapped(ours)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    model, prepared, scheduler = accelerator.prepare(ours, optimizer, scheduler)
    for _ in range(2):
        for x, target in batches():
            with accelerator.accumulate(model):
                loss, values = measure(model, x, target)
                accelerator.backward(optimizer.augment(loss, **values))
                if accelerator.sync_gradients:
                    if total:
                        optimizer.backward_constraints()
                    accelerator.clip_grad_norm_(model.parameters(), 0.1)
                prepared.step()
                scheduler.step()
                prepared.zero_grad()
        optimizer.update_multipliers()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.005)

    plain = wrapped(theirs)
    for _ in range(2):
        for x, target in batches():
            loss, values = measure(theirs, x, target)
            (plain.augment(loss, **values) / 3).backward()
        if total:
            plain.backward_constraints()
        clip_grad_norm_(theirs.parameters(), 0.1)
        plain.step()
        plain.param_groups[0]["lr"] *= 0.5
        plain.zero_grad()
        plain.update_multipliers()
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), multipliers(plain))


def test_accelerate_saves_and_loads_the_multipliers(accelerate, tmp_path):
    straight = Net()
    reference = wrapped(straight)
    train(straight, reference, epochs=4)

    first = Net()
    accelerator = accelerate()
    model, prepared = accelerator.prepare(first, wrapped(first))
    for _ in range(2):
        accelerated_epoch(accelerator, model, prepared)
    accelerator.save_state(str(tmp_path))

    second = Net()
    accelerator = accelerate()
    model, prepared = accelerator.prepare(second, wrapped(second))
    accelerator.load_state(str(tmp_path))
    for _ in range(2):
        accelerated_epoch(accelerator, model, prepared)
    assert_same(second, straight)
    assert_same(multipliers(prepared.optimizer), multipliers(reference))
    assert prepared.optimizer.dual.k == 5


def test_accelerate_in_bfloat16_keeps_float32_multipliers(accelerate):
    accelerator = accelerate(mixed_precision="bf16")
    model = Net().float()
    prepared_model, prepared = accelerator.prepare(model, wrapped(model))
    for x, target in float32_batches():
        prepared.zero_grad()
        with accelerator.autocast():
            loss, values = measure(prepared_model, x, target)
            loss = prepared.optimizer.augment(loss, **values)
        accelerator.backward(loss)
        prepared.step()
    prepared.optimizer.update_multipliers()
    y = multipliers(prepared.optimizer)
    assert y.dtype == torch.float32
    reference = Net()
    plain = wrapped(reference)
    train(reference, plain, epochs=1)
    # The forward pass has eight bits: a check of magnitudes.
    assert (y - multipliers(plain)).norm() < 0.05 * y.norm()
