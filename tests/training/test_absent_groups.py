"""Rates on batches without their group: no error, no gradient, no weight."""

import pytest
import torch
from torch import nn, optim

from torch_powalm import ConstraintRegistry, PowerALMOptimizer
from torch_powalm.training.block import tally

F64 = torch.float64
SETTINGS = pytest.mark.parametrize("settings", [{}, {"beta_1": 1.0}], ids=["automatic", "given"])


def rate(fn=lambda s: s[:1] / s[1:2] - 0.02, size=1, **settings):
    model = nn.Linear(2, 1, dtype=F64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.5, -0.5]]))
        model.bias.zero_()
    constraints = ConstraintRegistry()
    constraints.inequality("missed", size=size, from_statistics=fn)
    optimizer = PowerALMOptimizer(optim.SGD(model.parameters(), lr=0.1), constraints, **settings)
    return model, constraints, optimizer


def missed(logits, group):
    return torch.stack([torch.sigmoid(-logits[group]).sum(), group.sum().to(logits.dtype)])


def step(model, optimizer, x, group):
    optimizer.zero_grad()
    logits = model(x).squeeze(1)
    loss = logits.square().mean()
    optimizer.augment(loss, missed=missed(logits, group)).backward()
    optimizer.step()


def batches(n, absent):
    generator = torch.Generator().manual_seed(0)
    for i in range(n):
        x = torch.randn(6, 2, generator=generator, dtype=F64)
        yield x, torch.zeros(6, dtype=torch.bool) if absent(i) else x[:, 0] > 0


@SETTINGS
@pytest.mark.parametrize("absent", [lambda i: i < 3, lambda i: i % 2 == 1, lambda i: True])
@pytest.mark.parametrize("on_nonfinite", ["raise", "skip"])
def test_an_absent_group_is_no_error(settings, absent, on_nonfinite):
    model, constraints, optimizer = rate(on_nonfinite=on_nonfinite, **settings)
    for x, group in batches(60, absent):
        step(model, optimizer, x, group)
        assert all(p.isfinite().all() for p in model.parameters())
    optimizer.update_multipliers()
    assert optimizer.epoch.skipped == 0
    assert optimizer.dual.y.isfinite().all()
    never = constraints.violations()["missed"].never_seen
    assert never == ((0,) if absent(0) and absent(10) and absent(11) else ())


def test_a_batch_without_the_group_trains_the_loss_alone():
    model, _, optimizer = rate(beta_1=3.0)
    other = nn.Linear(2, 1, dtype=F64)
    other.load_state_dict(model.state_dict())
    plain = optim.SGD(other.parameters(), lr=0.1)
    x = next(batches(1, lambda i: True))[0]
    step(model, optimizer, x, torch.zeros(6, dtype=torch.bool))
    other(x).squeeze(1).square().mean().backward()
    plain.step()
    assert torch.equal(model.weight, other.weight)


def test_other_entries_keep_their_gradient():
    """Two groups against the mean over all: s = (missed, size) of group 0, group 1 and all."""

    def gaps(s):
        rates = s[:3] / s[3:]
        return rates[:2] - rates[2]

    statistics = torch.tensor([0.0, 2.0, 3.0, 0.0, 4.0, 5.0], dtype=F64)
    grads = {}
    for kept in (True, False):
        _, constraints, _ = rate(gaps, 2)
        block = constraints.blocks["missed"]
        p = nn.Parameter(statistics.clone())
        if kept:
            tally(block, p, 1.0).value(block).sum().backward()
        else:
            (p[1] / p[4] - p[2] / p[5]).backward()
        grads[kept] = p.grad
    torch.testing.assert_close(grads[True], grads[False], rtol=1e-12, atol=0)


@SETTINGS
def test_pooled_statistics_survive_an_absent_group(settings):
    """With the group in every other batch, the average of the statistics stays that of the rest."""
    model, constraints, optimizer = rate(updates="epoch", **settings)
    for x, group in batches(40, lambda i: i % 2 == 1):
        step(model, optimizer, x, group)
    value = constraints.values()["missed"]
    assert 0 < value.item() < 1
    if optimizer.estimate.on:
        (track,) = optimizer.estimate.tracks.values()
        assert track.tally.total.isfinite().all()
        assert track.gain.isfinite()


@SETTINGS
def test_statistics_that_are_nan_still_raise_by_name(settings):
    model, _, optimizer = rate(**settings)
    logits = model(torch.ones(2, 2, dtype=F64)).squeeze(1)
    bad = torch.stack([logits.sum() * torch.nan, logits[0]])
    with pytest.raises(FloatingPointError, match="constraint 'missed' must be finite"):
        optimizer.augment(logits.sum(), missed=bad)


@SETTINGS
def test_statistics_that_are_nan_are_still_skipped(settings):
    model, _, optimizer = rate(on_nonfinite="skip", **settings)
    before = model.weight.clone()
    logits = model(torch.ones(2, 2, dtype=F64)).squeeze(1)
    bad = torch.stack([logits.sum() * torch.nan, logits[0]])
    optimizer.augment(logits.sum(), missed=bad).backward()
    optimizer.step()
    assert torch.equal(model.weight, before)
    assert optimizer.epoch.skipped == 1


def test_a_true_value_that_is_nan_is_skipped_on_a_batch_without_the_group():
    """The nan that tells step() to skip must pass the absent entry."""
    model, _, optimizer = rate(on_nonfinite="skip", beta_1=1.0)
    before = model.weight.clone()
    logits = model(torch.ones(2, 2, dtype=F64)).squeeze(1)
    zero = (0 * logits).sum()
    strict = {"missed": torch.tensor([torch.nan, 1.0], dtype=F64)}
    constant = torch.zeros((), dtype=F64)
    absent = torch.stack([zero, zero])
    optimizer.augment(constant, missed=absent, strict=strict).backward()
    optimizer.step()
    assert torch.equal(model.weight, before)
    assert optimizer.epoch.skipped == 1
