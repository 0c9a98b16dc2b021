"""optimizer.report(): statuses, prices, tolerances, and how it prints."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from torch_powalm import ConstraintRegistry, PowerALMOptimizer

F64 = torch.float64


def parameter(*entries):
    return nn.Parameter(torch.tensor(entries, dtype=F64))


def by_hand(params, constraints, lr=0.1, **settings):
    base = torch.optim.SGD(params, lr)
    return PowerALMOptimizer(base, constraints, **{"nu": 1.0, "beta_1": 1.0, **settings})


def nearest_point(bound, unit=1.0):
    """Train min ½‖x − a‖² s.t. unit·(bᵀx − bound) ≤ 0; return the report and the loss."""
    a, b = torch.tensor([1.0, 2.0], dtype=F64), torch.tensor([2.0, 1.0], dtype=F64)
    x = parameter(0.0, 0.0)
    constraints = ConstraintRegistry()
    constraints.inequality("half_space", lambda: unit * (x @ b - bound).reshape(1))
    optimizer = by_hand([x], constraints, beta_1=1.0 / unit**2)
    for k in range(600):
        optimizer.zero_grad()
        loss = (x - a).square().sum() / 2
        loss.backward()
        optimizer.step()
        if k % 20 == 19:
            optimizer.update_multipliers()
    return optimizer.report(), ((x - a).square().sum() / 2).item()


@pytest.mark.parametrize("unit", [1.0, 100.0])
def test_a_price_is_what_one_unit_of_the_bound_costs(unit):
    report, _ = nearest_point(1.0, unit)
    block = report["half_space"]
    # y = (bᵀa − c)/‖b‖² = (4 − 1)/5 for a = (1, 2), b = (2, 1)
    assert block.price == pytest.approx(0.6 / unit, rel=1e-6)
    assert block.multiplier == pytest.approx(0.6 / unit, rel=1e-6)
    h = 1e-3
    slope = (nearest_point(1.0 - h, unit)[1] - nearest_point(1.0 + h, unit)[1]) / (2 * h)
    assert block.price * unit == pytest.approx(slope, rel=1e-4)
    assert block.status == "met"


def test_the_automatic_units_do_not_change_the_price():
    a, b = torch.tensor([1.0, 2.0], dtype=F64), torch.tensor([2.0, 1.0], dtype=F64)
    for unit in (1e-3, 1.0, 1e3):
        x = parameter(0.5, 0.5)
        constraints = ConstraintRegistry()
        bound = unit * 1.0
        constraints.inequality("half_space", lambda: (unit * x @ b - bound).reshape(1))  # noqa: B023
        base = torch.optim.SGD([x], 0.05)
        optimizer = PowerALMOptimizer(base, constraints, nu=1.0, total_steps=1500)
        for _ in range(1500):
            optimizer.zero_grad()
            ((x - a).square().sum() / 2).backward()
            optimizer.step()
        block = optimizer.report()["half_space"]
        assert block.price == pytest.approx(0.6 / unit, rel=1e-3)
        assert block.status == "met"
        assert block.tolerance == pytest.approx(0.01 * optimizer.units.reach("half_space"))


def test_statuses_of_functions_of_the_parameters():
    x = parameter(3.0, -1.0)
    constraints = ConstraintRegistry()
    constraints.equality("pinned", lambda: x + 1)
    constraints.inequality("loose", lambda: x - 100)
    constraints.inequality("near", lambda: x - 3)
    optimizer = by_hand([x], constraints)
    assert {block.status for block in optimizer.report()} == {"not yet"}  # no update so far
    optimizer.update_multipliers()
    report = optimizer.report()
    assert [block.name for block in report] == ["pinned", "loose", "near"]
    assert (report["pinned"].status, report["pinned"].violation) == ("violated", 4.0)
    assert report["pinned"].entry == 0
    assert report["pinned"].tolerance == 1e-3
    assert report["loose"].status == report["near"].status == "inactive"
    assert not report.feasible
    assert optimizer.report(tolerance=4.0).feasible
    with torch.no_grad():
        x.fill_(-1.0)
    assert optimizer.report()["pinned"].status == "met"
    assert optimizer.report()["pinned"].price == 4.0
    with torch.no_grad():
        x.fill_(math.nan)
    assert optimizer.report()["pinned"].status == "violated"


def test_a_tolerance_may_be_given_by_block():
    x = parameter(0.05)
    constraints = ConstraintRegistry()
    constraints.equality("a", lambda: x)
    constraints.equality("b", lambda: 2 * x)
    optimizer = by_hand([x], constraints)
    optimizer.update_multipliers()
    report = optimizer.report({"a": 0.06})
    assert (report["a"].status, report["b"].status) == ("met", "violated")
    assert (report["a"].tolerance, report["b"].tolerance) == (0.06, 1e-3)
    with pytest.raises(KeyError, match="tolerance has no constraint 'c'"):
        optimizer.report({"c": 1.0})
    with pytest.raises(ValueError, match="tolerance must be nonnegative and finite, got -1"):
        optimizer.report(-1)
    with pytest.raises(
        ValueError, match="tolerance of 'a' must be nonnegative and finite, got nan"
    ):
        optimizer.report({"a": math.nan})
    with pytest.raises(KeyError, match="report has no constraint 'c'"):
        report["c"]


def classes(optimizer, x, counts):
    optimizer.zero_grad()
    optimizer.augment(x.sum(), class_loss=(x - 1, torch.tensor(counts))).backward()
    optimizer.step()


def test_classes_that_were_never_seen_are_named():
    x = parameter(3.0, 2.0, 2.5)
    constraints = ConstraintRegistry()
    constraints.inequality("class_loss", size=3)
    optimizer = by_hand([x], constraints, lr=1e-3)
    block = optimizer.report()["class_loss"]
    assert (block.status, block.never_seen) == ("not yet", (0, 1, 2))
    assert math.isnan(block.violation)
    classes(optimizer, x, [0.0, 5.0, 0.0])
    optimizer.update_multipliers()
    block = optimizer.report()["class_loss"]
    assert (block.status, block.entry, block.never_seen) == ("violated", 1, (0, 2))
    assert "class_loss: no batch so far had entries 0, 2" in str(optimizer.report())
    classes(optimizer, x, [0.0, 0.0, 1.0])
    assert optimizer.report()["class_loss"].never_seen == (0,)
    classes(optimizer, x, [2.0, 0.0, 0.0])
    assert optimizer.report()["class_loss"].never_seen == ()


def test_a_group_that_was_never_in_a_batch_is_not_yet_judged():
    x = parameter(1.0)
    constraints = ConstraintRegistry()
    constraints.inequality("rate", size=1, from_statistics=lambda s: s[:1] / s[1:] - 0.1)
    optimizer = by_hand([x], constraints, on_nonfinite="skip")
    optimizer.zero_grad()
    zero = 0 * x.sum()
    optimizer.augment(x.sum(), rate=torch.stack([zero, zero])).backward()
    optimizer.constraints.record_step(optimizer.gradient.window.sums(optimizer.blocks.batch)[0])
    block = optimizer.report()["rate"]
    assert (block.status, block.never_seen) == ("not yet", (0,))


def test_units_still_being_measured_are_not_yet():
    x = parameter(1.0, 2.0)
    constraints = ConstraintRegistry()
    constraints.equality("pinned", lambda: x)
    optimizer = PowerALMOptimizer(torch.optim.Adam([x], 1e-3), constraints)
    for _ in range(3):
        optimizer.zero_grad()
        x.sum().backward()
        optimizer.step()
    block = optimizer.report()["pinned"]
    assert (block.status, block.entry) == ("not yet", 1)
    assert block.violation == pytest.approx(2.0, rel=1e-2)  # known all the same


def test_a_report_prints_as_a_table_and_is_a_dictionary():
    x = parameter(0.5, 2.0)
    constraints = ConstraintRegistry()
    constraints.equality("pinned", lambda: x)
    constraints.inequality("batch", size=1)
    optimizer = by_hand([x], constraints)
    lines = str(optimizer.report()).splitlines()
    header = ["block", "status", "violation", "entry", "tolerance", "multiplier", "price"]
    assert lines[0].split() == header
    assert lines[1].split() == ["pinned", "not", "yet", "2", "1", "0.001", "0", "0"]
    assert lines[2].split() == ["batch", "not", "yet", "–", "–", "0.001", "0", "0"]
    found = optimizer.report().to_dict()
    assert list(found) == ["pinned", "batch"]
    assert found["pinned"]["violation"] == 2.0
    assert found["batch"]["never_seen"] == (0,)


def test_a_report_changes_nothing():
    x = parameter(0.5, 2.0)
    constraints = ConstraintRegistry()
    constraints.equality("pinned", lambda: x)
    constraints.inequality("class_loss", size=2)
    optimizer = by_hand([x], constraints)
    classes(optimizer, x, [1.0, 1.0])
    before = str(optimizer.powalm_state_dict())
    assert repr(optimizer.report()) == repr(optimizer.report())  # nan is not equal to nan
    assert str(optimizer.powalm_state_dict()) == before
    assert x.requires_grad


def test_a_resumed_training_reports_the_values_of_its_checkpoint():
    def build():
        x = parameter(3.0, 2.0, 2.5)
        constraints = ConstraintRegistry()
        constraints.inequality("class_loss", size=3)
        return x, by_hand([x], constraints, lr=1e-3)

    x, optimizer = build()
    classes(optimizer, x, [1.0, 5.0, 2.0])
    optimizer.update_multipliers()
    _, resumed = build()
    resumed.load_state_dict(optimizer.state_dict())
    (block,) = optimizer.report()
    # The price is the mean weight of the steps before an update, which a state does not have.
    assert repr(tuple(resumed.report())) == repr((dataclasses.replace(block, price=math.nan),))


def test_the_first_steps_after_an_update_do_not_replace_the_value_that_it_saw():
    x, constraints = parameter(1.0), ConstraintRegistry()
    constraints.inequality("noisy", size=1)
    optimizer = by_hand([x], constraints)

    def step(value):
        optimizer.zero_grad()
        optimizer.augment(x.sum() * 0, noisy=x * 0 + value).backward()
        optimizer.step()

    for _ in range(10):
        step(-1.0)
    optimizer.update_multipliers()
    for _ in range(4):
        step(0.5)
        assert optimizer.report()["noisy"].violation == 0.0
    step(0.5)
    assert optimizer.report()["noisy"].violation == pytest.approx(0.5)
