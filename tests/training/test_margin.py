"""Margins given as numbers: multipliers see a stricter bound, reports the one asked for."""

import pytest
import torch
from torch import nn

from torch_powalm import ConstraintRegistry, PowerALMOptimizer


def budget(**settings):
    torch.manual_seed(0)
    model = nn.Linear(3, 2, bias=False)
    constraints = ConstraintRegistry()
    constraints.equality("first", lambda: model.weight[0] - 0.5)
    constraints.inequality("budget", lambda: model.weight[1, 1:].sum() - 1.0)
    constraints.inequality("mean", size=1)
    base = torch.optim.SGD(model.parameters(), lr=0.05)
    settings = {"nu": 1.0, "beta_1": 2.0, "updates": 10, **settings}
    return model, constraints, PowerALMOptimizer(base, constraints, **settings)


def train(model, optimizer, steps=300):
    for _ in range(steps):
        optimizer.zero_grad()
        value = model.weight[1, :1]
        loss = (model.weight - 3).square().sum()
        optimizer.augment(loss, mean=value - 0.4).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("margin", "total", "first"),
    [(0.0, 1.0, 0.4), (0.1, 0.9, 0.3), ({"mean": 0.2}, 1.0, 0.2), ({"budget": 0.5}, 0.5, 0.4)],
)
def test_a_training_ends_at_the_stricter_bound(margin, total, first):
    model, constraints, optimizer = budget(margin=margin)
    train(model, optimizer)
    assert model.weight[1, 1:].sum().item() == pytest.approx(total, abs=2e-2)
    assert model.weight[1, 0].item() == pytest.approx(first, abs=2e-2)
    assert model.weight[0].tolist() == pytest.approx([0.5] * 3, abs=2e-2)
    values = constraints.values()
    assert float(values["mean"]) == pytest.approx(first - 0.4, abs=2e-2)
    found = {name: float(m.max()) for name, m in optimizer.margins().items()}
    assert found == pytest.approx({"first": 0, "budget": 1 - total, "mean": 0.4 - first}, abs=1e-6)


def test_residuals_and_records_are_those_of_the_bound_asked_for():
    for margin in (0.0, 0.3):
        model, _, optimizer = budget(margin=margin)
        with torch.no_grad():
            model.weight[0].fill_(0.5)
            model.weight[1].fill_(0.35)
        optimizer.base.param_groups[0]["lr"] = 0.0
        for _ in range(2):
            optimizer.zero_grad()
            value = model.weight[1, :1] - 0.3
            optimizer.augment(model.weight.sum(), mean=value).backward()
            optimizer.step()
        optimizer.augment(model.weight.sum(), mean=model.weight[1, :1] - 0.3).backward()
        assert optimizer.residuals().primal_residual == pytest.approx(0.05, rel=1e-4)
        violations = optimizer.update_multipliers().violations
        assert violations["mean"].max == pytest.approx(0.05, rel=1e-4)
        assert violations["budget"].max == 0
        assert float(optimizer.multipliers()["mean"]) == pytest.approx(2 * (0.05 + margin))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"margin": -0.1}, ValueError, "margin must be nonnegative and finite, got -0.1"),
        ({"margin": {"mean": "x"}}, ValueError, "margin of 'mean' must be nonnegative and finite"),
        ({"margin": "automatic"}, ValueError, "margin must be a number, a mapping or 'auto', got"),
        ({"margin": "auto"}, ValueError, "margin='auto' and held_out must be given together, got"),
        ({"held_out": [0]}, ValueError, "held_out must be given together, got margin=0.0"),
        ({"margin": "auto", "held_out": [0]}, TypeError, "held_out must be a HeldOut, got list"),
    ],
)
def test_margins_are_checked(settings, error, message):
    with pytest.raises(error, match=message):
        budget(**settings)


@pytest.mark.parametrize("name", ["first", "other"])
def test_a_margin_needs_an_inequality(name):
    model, _, optimizer = budget(margin={name: 0.1})
    with pytest.raises(KeyError, match=f"margin has no inequality '{name}'"):
        train(model, optimizer, 1)
