"""Steps without multipliers, and prox terms without constraints."""

import pytest
import torch
from torch import nn, optim

from torch_powalm import ConstraintRegistry, PowerALMOptimizer, prox

F64 = torch.float64
SETTINGS = pytest.mark.parametrize("settings", [{}, {"beta_1": 1.0}], ids=["automatic", "given"])


def circle(batch, **settings):
    p = nn.Parameter(torch.tensor([1.0, 2.0], dtype=F64))
    constraints = ConstraintRegistry()
    if batch:
        constraints.equality("circle", size=1)
    else:
        constraints.equality("circle", lambda: p.square().sum() - 1)
    optimizer = PowerALMOptimizer(optim.Adam([p], lr=0.01), constraints, **settings)

    def step():
        optimizer.zero_grad()
        loss = (p - 3).square().sum()
        if batch:
            loss = optimizer.augment(loss, circle=p.square().sum()[None] - 1)
        loss.backward()
        optimizer.step()

    return p, optimizer, step


@SETTINGS
@pytest.mark.parametrize("batch", [True, False], ids=["batch", "parameters"])
def test_the_loss_alone_is_trained_in_the_warm_up(batch, settings):
    p, optimizer, step = circle(batch, warm_up=30, **settings)
    q = nn.Parameter(torch.tensor([1.0, 2.0], dtype=F64))
    plain = optim.Adam([q], lr=0.01)
    for i in range(30):
        step()
        plain.zero_grad()
        (q - 3).square().sum().backward()
        plain.step()
        assert torch.equal(p, q)
        if i < 29:
            assert optimizer.update_multipliers().k == 1
            assert not optimizer.dual.started
            assert optimizer.multipliers()["circle"].item() == 0.0
    assert len(optimizer.units.pull) == (0 if settings else 20)
    step()
    assert optimizer.dual.started
    assert not torch.equal(p, q)


@SETTINGS
def test_a_warm_up_that_is_saved_continues(settings):
    _, optimizer, step = circle(True, warm_up=5, **settings)
    for _ in range(3):
        step()
    _, other, more = circle(True, warm_up=5, **settings)
    other.load_state_dict(optimizer.state_dict())
    more()
    assert other.epoch.warming
    more()
    assert not other.epoch.warming


@pytest.mark.parametrize("warm_up", [-1, 1.5, True, "long"])
def test_warm_up_is_a_number_of_steps(warm_up):
    with pytest.raises(ValueError, match=r"warm_up must be a nonnegative integer, got"):
        circle(True, warm_up=warm_up)


# Without constraints


@SETTINGS
def test_prox_terms_without_constraints_are_prox_gradient_training(settings):
    p = nn.Parameter(torch.tensor([3.0, -0.5, 0.05], dtype=F64))
    q = p.detach().clone()
    base = optim.SGD([p], lr=0.1)
    optimizer = PowerALMOptimizer(base, ConstraintRegistry(), prox={p: prox.L1(0.2)}, **settings)
    for i in range(40):
        optimizer.zero_grad()
        slope = 1.0 if i != 30 else 100.0  # a long gradient is not shortened
        loss = slope * (p - 1).square().sum() / 2
        optimizer.augment(loss).backward()
        optimizer.step()
        q = q - 0.1 * slope * (q - 1)
        q = q.sign() * (q.abs() - 0.02).clamp(min=0)
        torch.testing.assert_close(p.detach(), q, rtol=1e-12, atol=1e-14)
        if i == 35:
            assert optimizer.update_multipliers().violations == {}
    optimizer.zero_grad()
    (slope * (p - 1).square().sum() / 2).backward()
    assert optimizer.residuals().primal_residual == 0.0
    assert optimizer.multipliers() == {}
    assert "owns no constraints and 1 parameters" in repr(optimizer)
    optimizer.load_state_dict(optimizer.state_dict())


def test_a_registry_without_constraints_and_prox_terms_still_raises():
    p = nn.Parameter(torch.zeros(1))
    optimizer = PowerALMOptimizer(optim.SGD([p], lr=0.1), ConstraintRegistry())
    p.sum().backward()
    with pytest.raises(ValueError, match="constraints must have at least one block, got none"):
        optimizer.step()


def test_augment_without_batch_blocks_returns_the_loss():
    p, optimizer, _ = circle(False)
    loss = p.sum()
    assert optimizer.augment(loss) is loss
