"""The dual state in other units: factors of the entries, and violations that are far away."""

import copy
import math

import pytest
import torch

from tests.test_dual import state, vector
from torch_powalm import functional as fn

MIXED = torch.tensor([False, True, True, False])
SCALES = vector(2.0, 0.5, 3.0, 0.1)
GROUPS = [slice(0, 2), slice(2, 4)]
RESIDUALS = [
    vector(0.3, -0.2, 0.4, 1.0),
    vector(-0.6, 0.8, -0.1, 0.5),
    vector(0.1, 0.3, 0.2, -0.7),
    vector(0.0, -0.9, 0.05, 0.2),
]
KINDS = pytest.mark.parametrize("inequality", [None, MIXED], ids=["equalities", "mixed"])
COUPLED = pytest.mark.parametrize("groups", [None, GROUPS], ids=["one norm", "two norms"])
POWERS = pytest.mark.parametrize("nu", [0.3, 0.7, 1.0])


def assert_near(found, expected, rel=1e-12):
    torch.testing.assert_close(found, expected, rtol=rel, atol=1e-14)


@POWERS
@KINDS
@COUPLED
@pytest.mark.parametrize("sigma", ["penalty", "paper", "sqrt", "pi"])
def test_factors_change_the_units_of_the_residuals_and_of_nothing_else(
    nu, inequality, groups, sigma
):
    """With factors s, the state at r is that of one without factors at s r; y is s times its y."""
    settings = dict(nu=nu, sigma=sigma, sufficient_decrease=0.6, omega=1.5)
    scaled, plain = state(**settings), state(**settings)
    scaled.start(RESIDUALS[0], inequality, groups, SCALES)
    plain.start(SCALES * RESIDUALS[0], inequality, groups)
    for r in RESIDUALS:
        assert_near(scaled.weight(r), SCALES * plain.weight(SCALES * r))
        assert scaled.value(r) == pytest.approx(plain.value(SCALES * r), rel=1e-12)
        assert scaled.residual_norm(r) == pytest.approx(plain.residual_norm(SCALES * r), rel=1e-12)
        value, weight = scaled.value_and_weight(r)
        assert value == pytest.approx(scaled.value(r), rel=1e-12)
        assert_near(weight, scaled.weight(r))
        here, there = scaled.update(r), plain.update(SCALES * r)
        assert_near(scaled.y, SCALES * plain.y)
        assert here.sigma == pytest.approx(there.sigma, rel=1e-12)
        assert (here.k, here.beta) == (there.k, there.beta)
        assert scaled.beta == plain.beta
        # What a user reads is in the user's units.
        seen = r if inequality is None else torch.where(inequality, r.clamp(min=0), r)
        assert here.primal_residual == pytest.approx(float(seen.norm()), rel=1e-12)
        assert here.y_norm == pytest.approx(float(scaled.y.norm()), rel=1e-12)


def test_the_norms_of_the_start_are_those_of_scaled_violations():
    dual = state(nu=0.5)
    dual.start(vector(1.5, -3.0, 4.0), torch.tensor([False, True, True]), None, vector(2, 5, 1))
    assert dual.last_norm == pytest.approx(5.0)  # (3, 0, 4)
    assert dual.start_norm == pytest.approx(5**0.5)
    dual.start(vector(1.5, 4.0), None, [slice(0, 1), slice(1, 2)], vector(2.0, 1.0))
    assert dual.last_norm == pytest.approx(5.0)
    assert dual.start_norm == pytest.approx(math.hypot(3**0.5, 4**0.5))


@KINDS
@POWERS
def test_new_factors_keep_the_multipliers(inequality, nu):
    dual = state(nu=nu)
    dual.start(RESIDUALS[0], inequality, None, SCALES)
    dual.update(RESIDUALS[1])
    y = dual.y.clone()
    dual.rescale(10 * SCALES)
    other = state(nu=nu, beta_1=dual.beta)
    other.start(RESIDUALS[0], inequality, None, 10 * SCALES)
    other.load_state_dict(dual.state_dict())
    assert torch.equal(dual.y, y)
    for r in RESIDUALS:
        assert_near(dual.weight(r), other.weight(r))
    assert_near(dual.weight(torch.zeros_like(y)), y)


def test_an_entry_with_factor_zero_has_no_weight_and_no_multiplier():
    dual = state(nu=0.5)
    dual.start(vector(3.0, 7.0, 4.0), None, None, vector(1.0, 0.0, 1.0))
    assert_near(dual.weight(vector(3.0, 7.0, 4.0)), vector(6.0, 0.0, 8.0) / 5**0.5)
    dual.update(vector(3.0, 7.0, 4.0))
    assert_near(dual.y, vector(6.0, 0.0, 8.0) / 5**0.5)
    assert dual.last_norm == pytest.approx(5.0)
    assert dual.value(vector(0.0, 9.0, 0.0)) == 0.0


def far_state(far, nu=0.5, inequality=None, groups=None, scale=None):
    dual = state(nu=nu)
    dual.set_units(2.0, 10.0, far)
    ones = torch.ones(4, dtype=torch.float64)
    dual.start(RESIDUALS[0], inequality, groups, ones if scale is None else scale)
    return dual


@KINDS
@COUPLED
@POWERS
def test_a_violation_that_is_far_away_pulls_no_harder(inequality, groups, nu):
    dual = far_state(1.0, nu, inequality, groups, SCALES)
    dual.update(vector(0.2, 0.1, 0.1, 0.1))
    r = vector(0.6, 1.6, 1.0, -3.0) / SCALES / 4
    distance = float((SCALES * r).norm())
    edge = r / distance
    assert distance > 0.8  # all entries are violations: the norm is that of all
    for factor in (1.5, 10.0, 1e6):
        assert_near(dual.weight(edge * factor), dual.weight(edge), rel=1e-9)
        assert dual.residual_norm(edge * factor) == pytest.approx(dual.residual_norm(edge))
    assert not torch.allclose(dual.weight(0.9 * edge), dual.weight(edge))


@KINDS
@POWERS
def test_the_value_goes_on_linearly_beyond_the_far_norm(inequality, nu):
    dual = far_state(1.0, nu, inequality, None, SCALES)
    dual.update(vector(0.2, 0.1, 0.1, 0.1))
    edge = vector(0.6, 1.6, 1.0, -3.0) / SCALES
    edge = edge / float((SCALES * edge).norm())
    slope = float(torch.dot(dual.weight(edge), edge))
    assert dual.value(edge * (1 + 1e-12)) == pytest.approx(dual.value(edge), rel=1e-9)
    for factor in (1.5, 3.0, 50.0):
        expected = dual.value(edge) + (factor - 1) * slope
        assert dual.value(factor * edge) == pytest.approx(expected, rel=1e-9)
        value, weight = dual.value_and_weight(factor * edge)
        assert value == pytest.approx(expected, rel=1e-9)
        assert_near(weight, dual.weight(edge), rel=1e-9)


def test_only_violations_are_far_away():
    """A satisfied inequality does not weaken the penalty of the others, however negative it is."""
    dual = far_state(2.0, inequality=MIXED)
    near, satisfied = vector(0.6, -1.0, 0.8, 0.0), vector(0.6, -1e6, 0.8, 0.0)
    assert_near(dual.weight(near), vector(1.2, 0.0, 1.6, 0.0))
    assert_near(dual.weight(satisfied), dual.weight(near))
    assert dual.value(satisfied) == pytest.approx(dual.value(near), rel=1e-12)
    assert dual.value(near) == pytest.approx(2 / 1.5)


def test_the_far_norm_is_not_reached_by_scaled_violations_equal_to_it():
    dual = far_state(5.0, scale=vector(1.0, 1.0, 1.0, 1.0))
    assert_near(dual.weight(vector(3.0, 4.0, 0.0, 0.0)), vector(6.0, 8.0, 0.0, 0.0) / 5**0.5)
    assert_near(dual.weight(vector(6.0, 8.0, 0.0, 0.0)), vector(6.0, 8.0, 0.0, 0.0) / 5**0.5)
    assert dual.value(vector(3.0, 4.0, 0.0, 0.0)) == pytest.approx(2 * 5**1.5 / 1.5)


def test_an_update_far_away_moves_the_multipliers_as_one_at_the_far_norm():
    near, far = far_state(1.0), far_state(1.0)
    here, there = near.update(RESIDUALS[0] / RESIDUALS[0].norm()), far.update(100 * RESIDUALS[0])
    assert_near(far.y, near.y)
    assert there.primal_residual == pytest.approx(100 * float(RESIDUALS[0].norm()))
    assert (here.k, here.sigma) == (there.k, there.sigma)
    assert far.last_norm == pytest.approx(1.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_values_that_are_not_finite_have_no_weight_in_any_units(bad):
    for dual in (far_state(1.0), far_state(math.inf), far_state(1.0, groups=GROUPS)):
        assert dual.weight(vector(0.1, bad, 0.1, 0.1)) is None
        assert dual.value_and_weight(vector(0.1, bad, 0.1, 0.1)) is None


def test_without_factors_nothing_is_far_away():
    dual = state(nu=1.0)
    dual.set_units(2.0, 10.0, 1.0)
    dual.start(vector(1.0))
    assert dual.weight(vector(50.0)).item() == 100.0


def test_set_units_keeps_the_largest_penalty():
    dual = state(beta_max=5.0)
    dual.set_units(7.0, 0.5, 2.0)
    assert (dual.beta_1, dual.sigma_1, dual.far) == (5.0, 0.5, 2.0)
    dual.set_units(3.0, 0.5, 2.0)
    assert dual.beta_1 == 3.0


def test_before_the_start_constraints_add_nothing():
    dual = state()
    assert dual.weight(vector(1.0, -2.0)).tolist() == [0.0, 0.0]
    assert dual.weight(vector(1.0, math.nan)) is None
    assert dual.weight(vector(1.0, -math.inf)) is None
    assert dual.value(vector(1.0, -2.0)) == 0.0


def test_the_root_rule_by_hand():
    dual = state(sigma="sqrt", nu=0.5, omega=1.0)
    dual.start(vector(4.0))
    y = 0.0
    for k, r in enumerate((4.0, 1.0, 0.25, 9.0), start=1):
        record = dual.update(vector(r))
        y += 10 / math.sqrt(k + 1) * math.sqrt(r)
        assert record.sigma == pytest.approx(10 / math.sqrt(k + 1), rel=1e-12)
        assert dual.y.item() == pytest.approx(y, rel=1e-12)


@COUPLED
def test_the_integral_rule_integrates_the_values_themselves(groups):
    """It lets the multiplier of a satisfied inequality fall by its value, not by its slack."""
    dual = state(sigma="pi", nu=1.0, sigma_1=0.5)
    dual.start(RESIDUALS[0], MIXED, groups)
    y = torch.zeros(4, dtype=torch.float64)
    for r in RESIDUALS:
        record = dual.update(r)
        y = y + 0.5 * r
        y = torch.where(MIXED, y.clamp(min=0), y)
        assert_near(dual.y, y)
        assert record.sigma == 0.5


def test_the_integral_rule_keeps_the_power():
    dual = state(sigma="pi", nu=0.5, sigma_1=2.0)
    dual.start(vector(3.0, 4.0, 0.25), None, [slice(0, 2), slice(2, 3)])
    dual.update(vector(3.0, 4.0, 0.25))
    assert_near(dual.y, 2 * vector(3 / 5**0.5, 4 / 5**0.5, 0.5))


def test_growth_takes_the_place_of_omega():
    dual = state(sufficient_decrease=0.5)
    dual.start(vector(1.0))
    dual.update(vector(0.9), growth=0.5)
    assert dual.beta == 1.0
    dual.update(vector(0.8), growth=1.0)
    assert dual.beta == 1.0
    dual.update(vector(0.1), growth=7.0)  # fell enough: stays
    assert dual.beta == 1.0


def test_a_multiplier_makes_a_part_of_its_move():
    dual = state(nu=1.0)
    dual.start(vector(1.0, 1.0, 1.0))
    dual.update(vector(1.0, 2.0, 3.0))
    before = dual.y.clone()
    record = dual.update(vector(1.0, 1.0, 1.0), part=vector(1.0, 0.0, 0.5))
    assert dual.y.tolist() == [before[0].item() + 6.0, before[1].item(), before[2].item() + 3.0]
    assert record.y_norm == pytest.approx(float(dual.y.norm()))


def test_the_first_violation_is_the_start_of_the_papers_rule():
    """A feasible start has no norm to compare with; the first violation takes its place."""
    dual = state(sigma="paper", nu=0.5)
    dual.start(vector(0.0, 0.0))
    assert dual.start_norm == 0.0
    decay = math.log(2) ** 2 / (2 * math.log(3) ** 2)
    assert dual.update(vector(3.0, 4.0)).sigma == pytest.approx(10 * decay)
    assert dual.start_norm == pytest.approx(5**0.5)
    dual.update(vector(6.0, 8.0))
    assert dual.start_norm == pytest.approx(5**0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fresh_state_takes_any_size(dtype):
    used = state()
    used.start(vector(1.0, 2.0), torch.tensor([True, False]), None, vector(2.0, 2.0))
    used.update(vector(1.0, 2.0))
    again = copy.copy(used)
    again.start(torch.ones(3, dtype=dtype))
    assert again.weight(torch.ones(3, dtype=dtype)).dtype == dtype
    assert used.weight(vector(-1.0, 0.0)) is not None


def test_a_state_takes_over_another_one():
    one, two = state(), state(nu=1.0)
    two.start(vector(1.0, 2.0), torch.tensor([True, False]))
    two.update(vector(1.0, 2.0))
    one.take_over(two)
    assert one.nu == 1.0
    assert one.update(vector(0.5, 0.5)) == two.update(vector(0.5, 0.5))


def test_the_penalty_grows_on_until_it_prevails_over_multipliers_that_push_away():
    r, one = torch.tensor([3.0, 4.0]), torch.ones(2)
    for y, far in ((-0.2 * r, 1.7**2), (-2 * r, 6.2**2), (0.2 * r, 1.44)):
        # β far^ν = β 1.44^ν + the part of −y along r, for β = 2 and ν = ½
        found, q = fn.rescale(r, one, None, 1.44, y, 2.0, 0.5)
        assert q == pytest.approx(min(1.0, far / 5), rel=1e-6)
        torch.testing.assert_close(found, q * r)
    inequality = torch.tensor([True, False])
    _, q = fn.rescale(torch.tensor([-3.0, 4.0]), one, inequality, 1.0, -0.5 * one, 1.0, 1.0)
    assert q == pytest.approx(1.5 / 4)  # an inequality that is met is no violation


def test_the_factor_is_one_where_nothing_is_far_away():
    r, one, y = torch.tensor([3.0, 4.0]), torch.ones(2), torch.zeros(2)
    for scale, far in ((None, 1.0), (one, math.inf), (one, 6.0), (one, 5.0)):
        assert fn.rescale(r, scale, None, far, y, 1.0, 0.5)[1] == 1.0
    assert fn.rescale(r, one, None, 1.0, -r, 1.0, 0.5)[1] == 1.0  # the multipliers push away
    assert fn.rescale(r * math.inf, one, None, 1.0, y, 1.0, 0.5)[1] == 1.0


def test_a_scaled_multiplier_is_zero_where_its_factor_is():
    dual = state(nu=1.0)
    dual.start(vector(1.0, 1.0), scale=torch.tensor([0.0, 2.0], dtype=torch.float64))
    dual.update(vector(1.0, 1.0))
    assert dual.tensors()["y"][0] == 0.0 < dual.tensors()["y"][1]
