"""What an epoch averages: counts, samples, strict values and statistics."""

import math

import pytest
import torch
from torch import nn

from tests.training.small_training import F64, assert_same, constrained, multipliers, small
from torch_powalm import ConstraintRegistry


def test_an_absent_class_neither_pulls_nor_counts():
    """Its value may even be nan, as the mean over no samples is."""
    p = nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=F64))
    constraints = ConstraintRegistry()
    constraints.equality("mean", size=3)
    optimizer = constrained(torch.optim.SGD([p], lr=0.0), constraints, nu=1.0, omega=1.0)
    seen = [([0, 0, 1], [10.0, 20.0, 30.0]), ([1, 1, 1], [1.0, 2.0, 4.0])]
    for target, x in seen:
        target, x = torch.tensor(target), torch.tensor(x, dtype=F64)
        values = torch.stack([(p[c] * x[target == c]).mean() for c in range(3)])
        count = torch.bincount(target, minlength=3)
        assert values[2].isnan()
        optimizer.zero_grad()
        optimizer.augment(0 * p.sum(), mean=(values, count)).backward()
        assert p.grad[2] == 0
        assert (p.grad != 0).tolist() == (count > 0).tolist()
        optimizer.step()
    assert constraints.violations()["mean"].max == pytest.approx(2 * 37 / 4, rel=1e-12)
    optimizer.update_multipliers()
    # Class 0 was seen twice, in the first batch only; class 1 four times over both.
    assert_same(multipliers(optimizer), torch.tensor([15.0, 2 * 37 / 4, 0.0], dtype=F64))


def test_a_class_that_an_epoch_has_not_seen_keeps_its_multiplier():
    p, _, optimizer = small("mean", nu=0.5, omega=1.0)
    for count in ([1, 1, 1], [1, 1, 0]):
        optimizer.zero_grad()
        optimizer.augment(p.sum(), mean=(p * 1, torch.tensor(count))).backward()
        optimizer.step()
        optimizer.update_multipliers()
        if count[2]:
            first = multipliers(optimizer)
    assert multipliers(optimizer)[2] == first[2] != 0
    assert (multipliers(optimizer)[:2] != first[:2]).all()


def test_gradients_come_from_the_proxy_and_multipliers_from_the_strict_value():
    p, constraints, optimizer = small("rate", nu=1.0, omega=1.0)
    start = p.detach().clone()
    optimizer.augment(0 * p.sum(), rate=2 * p, strict={"rate": torch.full((3,), 7.0)}).backward()
    assert_same(p.grad, 4 * start)  # J = 2, w = y + β·2p
    optimizer.step()
    assert constraints.violations()["rate"].max == 7.0
    record = optimizer.update_multipliers()
    assert multipliers(optimizer).tolist() == [7.0] * 3
    assert record.violations["rate"].max == 7.0
    assert record.primal_residual == pytest.approx(7 * math.sqrt(3), rel=1e-12)


def test_a_buffer_given_as_strict_value_may_be_reused_for_the_next_batch():
    p, _, optimizer = small("rate", nu=1.0)
    buffer = torch.empty(3, dtype=F64)
    for value in (1.0, 5.0):
        buffer.fill_(value)
        optimizer.zero_grad()
        optimizer.augment(p.sum(), rate=p * 1, strict={"rate": buffer}).backward()
        optimizer.step()
    optimizer.update_multipliers()
    assert multipliers(optimizer).tolist() == [3.0] * 3


def test_a_rate_is_a_function_of_the_sums_and_not_a_mean_of_rates():
    p = nn.Parameter(torch.tensor(0.5, dtype=F64))
    constraints = ConstraintRegistry()
    constraints.equality("rate", size=1, from_statistics=lambda s: s[:1] / s[1:] - 0.1)
    optimizer = constrained(torch.optim.SGD([p], lr=0.0), constraints, nu=1.0, omega=1.0)
    for hits, n in ((1.0, 10.0), (30.0, 40.0)):
        optimizer.zero_grad()
        statistics = torch.stack([hits * p, torch.tensor(n, dtype=F64)])
        optimizer.augment(0 * p, rate=statistics).backward()
        rate = hits * 0.5 / n - 0.1
        assert p.grad.item() == pytest.approx(rate * hits / n, rel=1e-12)
        optimizer.step()
    optimizer.update_multipliers()
    assert multipliers(optimizer).item() == pytest.approx(0.5 * 31 / 50 - 0.1, rel=1e-12)


def test_statistics_that_change_their_number_raise_before_anything_moves():
    p = nn.Parameter(torch.tensor([1.0, 2.0], dtype=F64))
    constraints = ConstraintRegistry()
    constraints.equality("rate", size=1, from_statistics=lambda s: s[:1] / s[1:2])
    optimizer = constrained(torch.optim.SGD([p], lr=0.1), constraints, nu=1.0)
    optimizer.augment(p.sum(), rate=p * 1).backward()
    optimizer.step()
    before = p.detach().clone()
    optimizer.zero_grad()
    optimizer.augment(p.sum(), rate=torch.cat([p, p])).backward()
    with pytest.raises(ValueError, match="statistics must have 2 entries as before, got 4"):
        optimizer.step()
    assert_same(p.detach(), before)
    assert optimizer.epoch.steps == 1


@pytest.mark.parametrize("samples", [(30, 10), (30.0, 10.0), (1, 3)])
def test_batches_weigh_in_the_epoch_by_their_samples(samples):
    p, _, optimizer = small("rate", nu=1.0)
    for value, n in zip((1.0, 2.0), samples, strict=True):
        optimizer.zero_grad()
        optimizer.augment(
            p.sum(), rate=p * 1, strict={"rate": torch.full((3,), value)}, samples=n
        ).backward()
        optimizer.step()
    optimizer.update_multipliers()
    expected = (samples[0] + 2 * samples[1]) / sum(samples)
    assert_same(multipliers(optimizer), torch.full((3,), expected, dtype=F64), rtol=1e-12)


def test_the_samples_of_a_batch_do_not_change_its_gradient():
    grads = []
    for samples in (1.0, 17.0):
        p, _, optimizer = small("rate", nu=0.4)
        optimizer.augment(p.sum(), rate=p.square(), samples=samples).backward()
        grads.append(p.grad)
    assert_same(grads[0], grads[1], rtol=1e-12)


def test_exact_values_at_the_update_replace_what_the_epoch_has_seen():
    p, _, optimizer = small("rate", nu=1.0)
    optimizer.augment(p.sum(), rate=p * 1).backward()
    optimizer.step()
    optimizer.update_multipliers(rate=torch.tensor([4.0, 5.0, 6.0], dtype=F64))
    assert multipliers(optimizer).tolist() == [4.0, 5.0, 6.0]
