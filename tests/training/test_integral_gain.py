"""How much of its move y makes."""

import pytest
import torch

from tests.problems import vector
from torch_powalm.training.integral_gain import STRONG, IntegralGain


def parts(residuals, distance=0.5, left=40.0, *, pull=0.0, kappa=0.5, steps=20, violated=None):
    """The parts at some updates of one entry, one after the other."""
    gain, found = IntegralGain(), []
    for value in residuals:
        r = vector(value)
        shown = r > 0 if violated is None else torch.tensor([violated])
        run = kappa, steps, 0.9, left
        found.append(gain.part(r, shown, vector(distance), vector(pull), *run).item())
    return pytest.approx(found)


@pytest.mark.parametrize(("left", "part"), [(40.0, 0.0), (10.0, 1.0)])
def test_y_waits_for_a_far_block_only_if_it_arrives_in_time(left, part):
    # Nine more such updates.
    assert parts([10.0, 9.0], 20.0, left) == [1.0, part]


def test_y_waits_for_a_near_block_that_the_penalty_halves():
    assert parts([1.0, 0.5], 0.5, 1.0) == [1.0, 0.0]


def test_y_moves_no_faster_than_the_base_answers():
    assert parts([1.0], steps=5) == [0.25]
    assert parts([1.0], kappa=2.0) == [0.5]


def test_y_hurries_while_a_violation_would_last_beyond_the_run():
    assert parts([1.0, 1.0, 0.99, 0.98, 0.9, 0.89], left=10.0) == [1.5**k for k in range(6)]


def test_y_hurries_no_faster_than_the_base_answers():
    part = 0.5  # ten steps are half of the memory of the base
    found = parts([1.0, 1.0, 1.0], left=10.0, steps=10)
    assert found == [part, part * 1.5**0.5, part * 1.5]


def test_y_stops_to_hurry_where_a_violation_will_be_gone_in_time():
    # With 40 updates left, a twentieth of the violation at each of them is enough.
    assert parts([1.0, 1.0, 0.9, 0.9]) == [1.0, 1.5, 1.0, 1.5]


def test_y_does_not_hurry_a_block_that_falls_as_fast_as_the_base_moves():
    assert parts([10.0, 9.8, 9.6], 20.0, 10.0) == [1.0, 1.0, 1.0]
    assert parts([10.0, 9.9, 9.8], 20.0, 10.0) == [1.0, 1.5, 2.25]


@pytest.mark.parametrize("residuals", [[-1.0, -1.0, -1.0], [1.0, -1.0, 1.0]])
def test_y_does_not_hurry_where_a_bound_holds_or_noise_changes_the_sign(residuals):
    assert parts(residuals) == [1.0, 1.0, 1.0]


def test_y_hurries_toward_an_equality_from_both_sides():
    assert parts([-1.0, -1.0, -1.0], violated=True) == [1.0, 1.5, 2.25]


def test_y_does_not_hurry_once_it_is_far_stronger_than_the_loss():
    assert parts([1.0, 1.0, 1.0], pull=0.9 * STRONG) == [1.0, 1.5, 2.25]
    assert parts([1.0, 1.0, 1.0], pull=STRONG) == [1.0, 1.0, 1.0]


def test_a_restored_gain_continues():
    gain = IntegralGain()
    at = torch.tensor([True]), vector(0.5), vector(0.0), 0.5, 20, 0.9, 40.0
    for _ in range(3):
        gain.part(vector(1.0), *at)
    other = IntegralGain.restored(**gain.state_dict())
    assert other.part(vector(1.0), *at).item() == pytest.approx(1.5**3)
    assert gain.part(vector(1.0), *at).item() == pytest.approx(1.5**3)
