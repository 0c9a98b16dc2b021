"""When multipliers are updated automatically."""

import itertools

import pytest
import torch
from torch import nn

from torch_powalm import ConstraintRegistry, PowerALMOptimizer
from torch_powalm.training.update_schedule import UpdateSchedule


def updates_of(schedule, steps, epoch=None):
    """Steps at which multipliers move, if the user asks for an update after each epoch."""
    since, found = 0, []
    for t in range(1, steps + 1):
        since += 1
        asked = epoch is not None and t % epoch == 0 and not schedule.is_too_soon(since, t)
        if schedule.is_due(since, t) or asked:
            found.append(t)
            since = 0
    return found


@pytest.mark.parametrize("total", [1000, 10_000])
def test_a_run_of_known_length_has_forty_updates(total):
    assert 38 <= len(updates_of(UpdateSchedule("auto", total), total)) <= 50


def test_a_short_run_has_an_update_every_ten_steps():
    assert updates_of(UpdateSchedule("auto", 200), 200) == list(range(10, 201, 10))


@pytest.mark.parametrize(("epochs", "length"), [(40, 100), (41, 97), (60, 100), (200, 30)])
def test_a_run_of_forty_epochs_or_more_is_updated_once_an_epoch(epochs, length):
    steps = epochs * length
    schedule = UpdateSchedule("auto", steps)
    assert updates_of(schedule, steps, epoch=length) == list(range(length, steps + 1, length))


def test_epochs_shorter_than_the_memory_of_the_base_share_an_update():
    assert updates_of(UpdateSchedule("auto", 250), 250, epoch=5) == list(range(10, 251, 10))


def test_a_full_batch_is_not_updated_at_every_step():
    found = updates_of(UpdateSchedule("auto", 2000), 2000, epoch=1)
    assert min(b - a for a, b in itertools.pairwise(found)) >= 20


def test_without_a_known_length_updates_grow_rarer():
    found = updates_of(UpdateSchedule("auto", None), 10_000)
    gaps = [b - a for a, b in itertools.pairwise(found)]
    assert gaps[0] == 20
    assert gaps == sorted(gaps)
    assert gaps[-1] >= 400
    assert len(updates_of(UpdateSchedule("auto", None), 300)) >= 10


def test_epoch_and_numbers_mean_what_they_say():
    assert updates_of(UpdateSchedule("epoch", 100), 100, epoch=7) == list(range(7, 101, 7))
    assert updates_of(UpdateSchedule(9, None), 100) == list(range(9, 101, 9))


@pytest.mark.parametrize("updates", ["often", 0, -1, 2.5, True])
def test_other_rules_raise(updates):
    with pytest.raises(ValueError, match="updates must be 'auto', 'epoch' or a positive integer"):
        UpdateSchedule(updates, None)


@pytest.mark.parametrize("total", [0, -5, 2.5, True])
def test_a_length_must_be_a_positive_integer(total):
    with pytest.raises(ValueError, match="total_steps must be None or a positive integer"):
        UpdateSchedule("auto", total)


def test_an_update_that_comes_too_soon_changes_nothing():
    p = nn.Parameter(torch.ones(2))
    constraints = ConstraintRegistry()
    constraints.equality("sum", lambda: p.sum().reshape(1) - 1)
    optimizer = PowerALMOptimizer(torch.optim.SGD([p], 0.01), constraints, total_steps=400)
    for _ in range(50):
        optimizer.zero_grad()
        p.square().sum().backward()
        optimizer.step()
    assert optimizer.dual.k == 5  # an update after the measuring steps, then every ten steps
    k, y = optimizer.dual.k, optimizer.dual.y.clone()
    record = optimizer.update_multipliers()
    assert record.sigma == 0.0
    assert record.violations["sum"].max == pytest.approx(abs(float(p.detach().sum()) - 1), rel=1e-5)
    assert optimizer.dual.k == k
    assert torch.equal(optimizer.dual.y, y)
