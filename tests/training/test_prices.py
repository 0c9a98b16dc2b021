"""Prices in a report, against finite differences and a known answer."""

import math

import pytest
import torch
from torch import nn

from torch_powalm import ConstraintRegistry, PowerALMOptimizer, ProxyValue

TARGET = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)


def solve(base, units, total=1.0, cap=0.2):
    """Train min ½‖x − TARGET‖² s.t. Σ x_i = total, x_1 ≤ cap, x_2 ≤ 50; return loss and report.

    `units` are the factors of the equality, of the first inequality and of the loss.
    """
    a, b, c = units
    x = nn.Parameter(torch.tensor([0.3, 0.1, -0.4], dtype=torch.float64))
    constraints = ConstraintRegistry()
    constraints.equality("total", lambda: a * (x.sum() - total))
    constraints.inequality("cap", lambda: b * (x[0] - cap))
    constraints.inequality("loose", lambda: x[1] - 50)
    inner = torch.optim.Adam([x], lr=0.05) if base == "adam" else torch.optim.SGD([x], lr=0.05 / c)
    optimizer = PowerALMOptimizer(inner, constraints, total_steps=800)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 800)
    for _ in range(800):
        optimizer.zero_grad()
        loss = c / 2 * (x - TARGET).square().sum()
        loss.backward()
        optimizer.step()
        schedule.step()
    return loss.item(), optimizer.report(), optimizer


@pytest.mark.parametrize(
    ("base", "units"),
    [("adam", (1.0, 1.0, 1.0)), ("adam", (1e3, 1e-3, 1e2)), ("sgd", (1e-2, 10.0, 1.0))],
)
def test_a_price_is_what_one_unit_of_a_bound_costs_in_loss(base, units):
    a, b, c = units
    _, report, optimizer = solve(base, units)
    # x = (0.2, 0.05 − 0.4, …): y_total = −0.65 from x_2 and x_3, y_cap = 2 − 0.2 + 0.65.
    assert report["total"].price == pytest.approx(-0.65 * c / a, rel=1e-4)
    assert report["cap"].price == pytest.approx(2.45 * c / b, rel=1e-4)
    assert (report["loose"].status, report["loose"].price) == ("inactive", 0.0)
    h = 1e-2  # the loss is quadratic in the bounds, so central differences are exact
    for name, bound, factor in (("total", 1.0, a), ("cap", 0.2, b)):
        (less, *_), (more, *_) = (solve(base, units, **{name: bound + s * h}) for s in (-1, 1))
        slope = (less - more) / (2 * h * factor)
        assert report[name].price == pytest.approx(slope, rel=1e-3)
        (price,) = optimizer.prices()[name]
        assert price.low <= price.value <= price.high
        assert price.value == pytest.approx(slope, rel=1e-2)


def proxied(steps, **settings):
    """min (x − 2)² s.t. x ≤ 1 with the proxy x − 0.5: 2 (x − 2) + 10 (x − 0.5) = 0 at x = 0.75."""
    x = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    constraints = ConstraintRegistry()
    constraints.inequality("rate", size=1)
    sgd = torch.optim.SGD([x], lr=0.05)
    settings = {"nu": 1.0, "beta_1": 10.0, "omega": 1.0, "updates": 10, **settings}
    optimizer = PowerALMOptimizer(sgd, constraints, **settings)
    for _ in range(steps):
        optimizer.zero_grad()
        value = ProxyValue(x - 0.5, (x - 1).detach())
        optimizer.augment((x - 2).square().sum(), rate=value).backward()
        optimizer.step()
    return x.item(), optimizer


@pytest.mark.parametrize("check_finite", ["every_step", "at_update"])
def test_a_price_has_the_part_of_the_penalty_that_pulls_at_a_smooth_proxy(check_finite):
    x, optimizer = proxied(400, check_finite=check_finite)
    assert x == pytest.approx(0.75)
    assert optimizer.multipliers()["rate"].item() == 0.0  # the true value is below its bound
    (price,) = optimizer.prices()["rate"]
    assert (price.low, price.value) == pytest.approx((2.5, 2.5))  # −d loss / dx
    assert optimizer.report()["rate"].price == pytest.approx(2.5)


def test_a_price_with_a_smooth_proxy_is_not_known_before_its_first_update():
    _, optimizer = proxied(5)
    assert math.isnan(optimizer.report()["rate"].price)
    assert "–" in str(optimizer.report())


def test_prices_need_a_positive_number_of_updates():
    _, _, optimizer = solve("sgd", (1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="last must be a positive integer, got 0"):
        optimizer.prices(last=0)
    (all_updates,) = optimizer.prices(last=1000)["cap"]
    (few,) = optimizer.prices(last=3)["cap"]
    assert all_updates.high - all_updates.low > few.high - few.low


@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0])
def test_prices_of_noisy_batches_are_the_slope_of_the_loss_where_the_training_ends(noise):
    """min ½(x − 2)² s.t. E(x − 1 + noise) ≤ 0: wherever x settles, a unit of it costs 2 − x."""
    generator = torch.Generator().manual_seed(0)
    x = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    constraints = ConstraintRegistry()
    constraints.inequality("mean", size=1)
    optimizer = PowerALMOptimizer(torch.optim.SGD([x], lr=0.05), constraints, total_steps=600)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)
    for _ in range(600):
        optimizer.zero_grad()
        value = x - 1 + noise * torch.randn(1, generator=generator, dtype=torch.float64)
        optimizer.augment((x - 2).square().sum() / 2, mean=value).backward()
        optimizer.step()
        schedule.step()
    (price,) = optimizer.prices()["mean"]
    assert price.value == pytest.approx(2 - x.item(), rel=0.02 + 0.5 * noise)
    assert price.low <= price.value <= price.high
