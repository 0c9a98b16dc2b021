"""Running averages of batch blocks: gains that follow the noise, pooled statistics."""

import pytest
import torch

from torch_powalm import ConstraintRegistry
from torch_powalm.training.block import tally
from torch_powalm.training.running_estimate import GAIN_MIN, RunningEstimate


def block(**kwargs):
    constraints = ConstraintRegistry()
    constraints.inequality("block", **{"size": 1, **kwargs})
    return constraints.blocks["block"]


def follow(values, one):
    estimate = RunningEstimate(True)
    for value in values:
        estimate.follow([one], {"block": tally(one, value, 1.0)})
    return estimate.tracks["block"]


def test_a_value_that_moves_is_followed_at_once():
    one = block()
    track = follow([torch.tensor([0.1 * k]) for k in range(40)], one)
    assert float(track.gain) > 0.9
    assert float(track.tally.value(one)) == pytest.approx(3.9, abs=0.2)


def test_noise_is_averaged():
    one = block()
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(500, 1, generator=generator)
    gains, errors = [], []
    estimate = RunningEstimate(True)
    for value in noise:
        estimate.follow([one], {"block": tally(one, 3 + value, 1.0)})
        gains.append(float(estimate.tracks["block"].gain))
        errors.append(float(estimate.tracks["block"].tally.value(one)) - 3)
    assert sum(gains[100:]) / 400 < 0.3
    assert GAIN_MIN <= min(gains) <= max(gains) <= 1
    assert torch.tensor(errors[100:]).std() < 0.5 * noise[100:].std()


def test_units_do_not_change_the_gain():
    one = block()
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(50, 1, generator=generator, dtype=torch.float64)
    gains = [float(follow([c * v for v in values], one).gain) for c in (1.0, 1e-6, 1e6)]
    assert gains == pytest.approx([gains[0]] * 3, rel=1e-9)


def test_an_absent_group_keeps_its_average():
    one = block(size=2)
    seen = (torch.tensor([1.0, 5.0]), torch.tensor([4.0, 4.0]))
    absent = (torch.tensor([2.0, 0.0]), torch.tensor([4.0, 0.0]))
    track = follow([seen, absent, absent, absent], one)
    assert track.tally.value(one)[1] == pytest.approx(5.0)
    assert track.tally.value(one)[0] > 1.5


def test_statistics_are_pooled():
    rate = block(from_statistics=lambda s: s[:1] / s[1:] - 0.5)
    batches = [torch.tensor([1.0, 1.0]), torch.tensor([0.0, 3.0])] * 40
    estimate = RunningEstimate(True)
    values = []
    for sums in batches:
        estimate.follow([rate], {"block": tally(rate, sums, 1.0)})
        values.append(float(estimate.tracks["block"].tally.value(rate)))
    # One in four on the whole, while the mean of the batches' rates is one half.
    assert sum(values[20:]) / len(values[20:]) == pytest.approx(0.25 - 0.5, abs=0.06)
