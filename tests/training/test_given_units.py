"""Units that the user gives: `scale=` of a block, and `beta_1` by block."""

import pytest
import torch
from torch import nn

from torch_powalm import ConstraintRegistry, PowerALMOptimizer
from torch_powalm.functional import grad_phi
from torch_powalm.training.epoch_residual import epoch_residual


def model():
    return nn.Parameter(torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64))


def train(x, constraints, steps=60, batch=None, **settings):
    """Minimize ‖x − 1‖² under constraints with an update every five steps, and return x, y."""
    optimizer = PowerALMOptimizer(torch.optim.SGD([x], 2e-3), constraints, **settings)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (x - 1).square().sum()
        (loss if batch is None else optimizer.augment(loss, batch=batch(x))).backward()
        optimizer.step()
        if optimizer.should_update(steps=5):
            optimizer.update_multipliers()
    return x.detach().clone(), optimizer


def registry(x, a=1.0, b=1.0, **scales):
    constraints = ConstraintRegistry()
    constraints.equality("sphere", lambda: a * (x.square().sum().reshape(1) - 1), **scales)
    constraints.inequality("low", lambda: b * (x[:2] - 0.3))
    return constraints


@pytest.mark.parametrize("nu", [0.6, 1.0])
@pytest.mark.parametrize("coupling", ["all", "block"])
def test_a_given_scale_is_the_factor_in_the_penalty(nu, coupling):
    settings = {"nu": nu, "beta_1": 2.0, "coupling": coupling}
    x, y = model(), model()
    scaled, ours = train(x, registry(x, scale=3.0), **settings)
    by_hand, theirs = train(y, registry(y, a=3.0), **settings)
    torch.testing.assert_close(scaled, by_hand, rtol=1e-10, atol=0)
    price, other = (o.multipliers()["sphere"] for o in (ours, theirs))
    torch.testing.assert_close(price, 3 * other, rtol=1e-10, atol=0)  # in the user's units
    assert ours.report()["sphere"].violation == pytest.approx(
        theirs.report()["sphere"].violation / 3, rel=1e-9
    )


def test_a_batch_block_takes_a_scale_too():
    ends = []
    for scale, factor in ((10.0, 1.0), (None, 10.0)):
        x, constraints = model(), ConstraintRegistry()
        constraints.inequality("batch", size=3, scale=scale)
        ends.append(train(x, constraints, batch=lambda x, c=factor: c * (x - 0.3), beta_1=1.0)[0])
    torch.testing.assert_close(*ends, rtol=1e-10, atol=0)


@pytest.mark.parametrize("factor", [1.0, 1e-4, 1e3])
def test_a_given_scale_switches_the_automatic_off_for_its_block_only(factor):
    x = model()
    # The other block is measured: it may have any units.
    _, optimizer = train(x, registry(x, b=factor, scale=3.0), total_steps=60)
    scale = optimizer.blocks.split(optimizer.dual.scale)
    assert scale["sphere"].tolist() == [3.0]
    assert scale["low"][0].item() == pytest.approx(optimizer.units.scale("low"))
    assert factor * scale["low"][0].item() == pytest.approx(reference_scale(), rel=1e-9)


def reference_scale():
    x = model()
    _, optimizer = train(x, registry(x, scale=3.0), total_steps=60)
    return optimizer.dual.scale[-1].item()


@pytest.mark.parametrize("nu", [0.6, 1.0])
def test_penalties_by_block_are_those_of_a_sum_with_one_norm_per_block(nu):
    x = model()
    beta = {"sphere": 5.0, "low": 0.5}
    optimizer = PowerALMOptimizer(
        torch.optim.SGD([x], 0.0), registry(x), nu=nu, beta_1=beta, coupling="block"
    )
    optimizer.zero_grad()
    (x - 1).square().sum().backward()
    optimizer.step()
    r = optimizer.blocks.split(epoch_residual(optimizer.blocks, optimizer.constraints, {}))
    w = optimizer.blocks.split(
        optimizer.dual.weight(epoch_residual(optimizer.blocks, optimizer.constraints, {}))
    )
    violated = {"sphere": r["sphere"].detach(), "low": r["low"].detach().clamp(min=0)}
    for name, value in violated.items():
        expected = beta[name] * grad_phi(value, nu)
        torch.testing.assert_close(w[name], expected, rtol=1e-12, atol=0)
    optimizer.update_multipliers()  # σ = β, by block
    for name, y in optimizer.multipliers().items():
        torch.testing.assert_close(y, beta[name] * grad_phi(violated[name], nu), rtol=1e-12, atol=0)
    assert optimizer.dual.beta == 5.0  # the largest is the one in records


@pytest.mark.parametrize("nu", [0.6, 1.0])
def test_with_one_norm_a_block_that_alone_is_violated_has_its_own_penalty(nu):
    x = model()
    constraints = registry(x)
    optimizer = PowerALMOptimizer(
        torch.optim.SGD([x], 0.0), constraints, nu=nu, beta_1={"sphere": 5.0, "low": 0.5}
    )
    (x - 1).square().sum().backward()
    optimizer.step()
    for r in ([2.0, -1.0, -1.0], [0.0, 3.0, 4.0]):
        r = torch.tensor(r, dtype=torch.float64)
        expected = (5.0 if r[0] else 0.5) * grad_phi(r.clamp(min=0), nu)
        torch.testing.assert_close(optimizer.dual.weight(r), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("nu", [0.6, 1.0])
def test_equal_penalties_by_block_are_one_penalty(nu):
    ends = []
    for beta_1 in (3.0, {"low": 3.0, "sphere": 3.0}):
        x = model()
        ends.append(train(x, registry(x), nu=nu, beta_1=beta_1)[0])
    torch.testing.assert_close(*ends, rtol=1e-10, atol=0)


def test_a_resume_keeps_given_units():
    settings = {"beta_1": {"sphere": 5.0, "low": 0.5}, "nu": 0.7}
    x = model()
    straight, _ = train(x, registry(x, scale=4.0), **settings)
    x = model()
    _, first = train(x, registry(x, scale=4.0), steps=31, **settings)
    other = PowerALMOptimizer(torch.optim.SGD([x], 2e-3), registry(x, scale=4.0), **settings)
    other.load_state_dict(first.state_dict())
    for _ in range(29):
        other.zero_grad()
        (x - 1).square().sum().backward()
        other.step()
        if other.should_update(steps=5):
            other.update_multipliers()
    assert torch.equal(x.detach(), straight)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan"), "1"])
def test_a_scale_must_be_positive(scale):
    with pytest.raises(ValueError, match="scale of 'a' must be positive and finite, got"):
        ConstraintRegistry().equality("a", size=1, scale=scale)


@pytest.mark.parametrize(
    ("beta_1", "error", "message"),
    [
        ({}, ValueError, "beta_1 must have a number for every constraint, got none"),
        ({"sphere": 0.0}, ValueError, "beta_1 of 'sphere' must be positive and finite, got 0.0"),
        ({"sphere": "1"}, ValueError, "beta_1 of 'sphere' must be positive and finite, got '1'"),
        ({"sphere": 1.0}, ValueError, "number for every constraint, got none for 'low'"),
        ({"sphere": 1.0, "low": 1.0, "up": 1.0}, KeyError, "beta_1 has no constraint 'up'"),
    ],
)
def test_a_penalty_by_block_must_name_all_blocks(beta_1, error, message):
    x = model()
    with pytest.raises(error, match=message):
        train(x, registry(x), beta_1=beta_1)
