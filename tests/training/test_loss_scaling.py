"""Loss scaling with a GradScaler."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import optim
from torch.nn.utils import clip_grad_norm_

from tests.training.small_training import (
    BASES,
    EACH_BASE,
    HYBRID,
    Average,
    Net,
    Twin,
    assert_same,
    batches,
    constrained,
    cpu_scaler,
    flat,
    measure,
    multipliers,
    registry,
    static,
    train_twin,
)
from tests.training.test_nonfinite_values import assert_untouched
from torch_powalm import PowerALMOptimizer


def wrapped(model: Net, base: Any = BASES["Adam"], **settings: Any) -> PowerALMOptimizer:
    return constrained(base(model), registry(model), **{"nu": 0.7, **settings})


# Loss scaling


@EACH_BASE
@pytest.mark.parametrize("unscale", [False, True], ids=["implicit unscale", "explicit unscale"])
def test_a_scaled_run_equals_the_full_lagrangian(unscale, base):
    ours, theirs = Net(), Net()
    optimizer, scaler, twin = wrapped(ours, base), cpu_scaler(), Twin(HYBRID, 0.7)
    for _ in range(3):
        for x, target in batches():
            optimizer.zero_grad()
            loss, values = measure(ours, x, target)
            scaler.scale(optimizer.augment(loss, **values)).backward()
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        optimizer.update_multipliers()
    train_twin(theirs, base(theirs), twin)
    assert scaler.get_scale() == 4096.0
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)


@EACH_BASE
@pytest.mark.parametrize("total", [False, True], ids=["loss only", "total"])
def test_clipping_a_scaled_gradient_takes_the_loss_or_the_total(total, base):
    ours, theirs = Net(), Net()
    optimizer, scaler = wrapped(ours, base), cpu_scaler()
    plain, twin = base(theirs), Twin(HYBRID, 0.7)
    for _ in range(2):
        average = Average()
        for x, target in batches():
            optimizer.zero_grad()
            loss, values = measure(ours, x, target)
            scaler.scale(optimizer.augment(loss, **values)).backward()
            scaler.unscale_(optimizer)
            if total:
                optimizer.backward_constraints()
            clip_grad_norm_(ours.parameters(), 0.05)
            scaler.step(optimizer)
            scaler.update()

            plain.zero_grad()
            loss, values = measure(theirs, x, target)
            A_static, A_batch = static(theirs), flat(values)
            (loss + twin.value(torch.cat([A_static.detach(), A_batch]))).backward()
            if not total:
                clip_grad_norm_(theirs.parameters(), 0.05)
            twin.value(torch.cat([A_static, A_batch.detach()])).backward()
            if total:
                clip_grad_norm_(theirs.parameters(), 0.05)
            plain.step()
            average.add(values)
        optimizer.update_multipliers()
        twin.update(torch.cat([static(theirs), average.value()]))
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)


@EACH_BASE
@pytest.mark.parametrize("form", ["implicit", "explicit", "total"])
def test_a_skipped_step_moves_nothing_and_does_not_count(form, base):
    ours, theirs = Net(), Net()
    optimizer, scaler, twin = wrapped(ours, base), cpu_scaler(), Twin(HYBRID, 0.7)
    for _ in range(2):
        for i, (x, target) in enumerate(batches()):
            before = copy.deepcopy((ours.state_dict(), optimizer.state_dict()))
            optimizer.zero_grad()
            loss, values = measure(ours, x, target)
            overflow = math.inf if i == 2 else 1.0
            (scaler.scale(optimizer.augment(loss, **values)) * overflow).backward()
            if form != "implicit":
                scaler.unscale_(optimizer)
            if form == "total":
                optimizer.backward_constraints()
            scaler.step(optimizer)
            scaler.update()
            if i == 2:
                assert_untouched(before, ours, optimizer)
        assert optimizer.epoch.steps == 2
        assert optimizer.epoch.skipped == 0  # the scaler's skips are the scaler's
        optimizer.update_multipliers()
    train_twin(theirs, base(theirs), twin, epochs=2, skip=2)
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)


@pytest.mark.parametrize("clear", ["optimizer", "model"])
def test_a_total_clip_after_a_skipped_step_still_has_the_constraints(clear):
    ours, theirs = Net(), Net()
    for net, factors in ((ours, (math.inf, 1.0)), (theirs, (1.0,))):
        optimizer = constrained(
            optim.SGD(net.parameters(), lr=0.1), registry(net, batch=False), nu=0.7
        )
        scaler = cpu_scaler()
        for factor in factors:
            (optimizer if clear == "optimizer" else net).zero_grad()
            (scaler.scale(measure(net, *batches()[0])[0]) * factor).backward()
            scaler.unscale_(optimizer)
            optimizer.backward_constraints()
            clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        assert optimizer.epoch.steps == 1
    assert_same(ours, theirs)


def test_constraints_added_before_unscaling_are_unscaled_away():
    """The order matters: this is what backward_constraints() warns of."""
    moved = []
    for wrong in (False, True):
        model = Net()
        optimizer = constrained(
            optim.SGD(model.parameters(), lr=0.1), registry(model, batch=False), nu=0.7
        )
        scaler = cpu_scaler()
        scaler.scale(measure(model, *batches()[0])[0]).backward()
        if wrong:
            optimizer.backward_constraints()
        scaler.unscale_(optimizer)
        if not wrong:
            optimizer.backward_constraints()
        scaler.step(optimizer)
        moved.append(model.first.weight.detach())
    twin, reference = Twin(HYBRID[:6], 0.7), Net()
    twin.value(static(reference)).backward()
    lost = 0.1 * reference.first.weight.grad * (1 - 1 / 1024)
    assert_same(moved[1] - moved[0], lost)
    assert float(lost.norm()) > 0.1
