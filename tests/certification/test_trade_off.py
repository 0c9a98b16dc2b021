"""trade_off: from the loosest bound to the strictest, each from the state of the last."""

import json
import math

import pytest
import torch

from torch_powalm import ConstraintRegistry, Rates, Trained, certify, trade_off


def train(bound, state, confidence):
    """Loss 1/bound, price 1/bound²; the certificate sees a rate of half the bound."""
    constraints = ConstraintRegistry()
    constraints.inequality("rate", size=1, from_statistics=lambda s: s[:1] / s[1:] - bound)
    counts = lambda batch: {"rate": torch.tensor([500 * bound, 1000.0]).round()}  # noqa: E731
    certificate = certify(constraints, counts, [0], confidence, kinds={"rate": Rates()})
    return Trained(1 / bound, [*(state or []), bound], certificate, 1 / bound**2)


def test_a_curve_has_certified_bounds_and_slopes_like_its_prices(tmp_path):
    curve = trade_off(train, [0.1, 0.4, 0.2], confidence=0.94)
    assert [p.bound for p in curve] == [0.4, 0.2, 0.1]
    assert all(p.holds and p.bound / 2 < p.certified < p.bound for p in curve)
    assert curve.slopes() == pytest.approx([2.5 / 0.2, 5 / 0.1])
    for point, after, slope in zip(curve.points, curve.points[1:], curve.slopes(), strict=False):
        assert point.price < slope < after.price  # the loss is convex in the bound
    curve.save(tmp_path / "curve.json")
    assert json.loads((tmp_path / "curve.json").read_text())["points"][0]["bound"] == 0.4
    curve.plot(tmp_path / "curve.png", name="rate")
    assert (tmp_path / "curve.png").stat().st_size > 0
    assert str(curve).splitlines()[1].split()[:2] == ["0.4", "2.5"]


def test_states_are_passed_on_and_the_error_is_divided():
    seen = []

    def remember(bound, state, confidence):
        seen.append((bound, state, confidence))
        return Trained(1.0, bound)

    curve = trade_off(remember, [1.0, 2.0])
    assert seen == [(2.0, None, 0.975), (1.0, 2.0, 0.975)]
    assert [p.holds for p in curve] == [None, None]
    assert all(math.isnan(p.certified) for p in curve)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((None, [1.0]), TypeError, "train must be a function, got NoneType"),
        ((train, []), ValueError, r"bounds must be different finite numbers, got \[\]"),
        ((train, [0.1, 0.1]), ValueError, "bounds must be different finite numbers, got"),
        ((train, [math.nan]), ValueError, "bounds must be different finite numbers, got"),
        ((train, [0.1], 1.0), ValueError, r"confidence must be in \(0, 1\), got 1.0"),
        ((lambda *a: 1.0, [0.1]), TypeError, "train must return a Trained, got float"),
    ],
)
def test_arguments_are_checked(arguments, error, message):
    with pytest.raises(error, match=message):
        trade_off(*arguments)
