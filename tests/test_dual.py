"""The dual state: its sequences by hand, its settings, and what they do."""

import copy
import math

import pytest
import torch

import torch_powalm.dual
from torch_powalm import DualState

DEFAULTS = dict(
    nu=0.5,
    beta_1=2.0,
    omega=3.0,
    sigma="penalty",
    sigma_1=10.0,
    beta_max=math.inf,
    y_max=math.inf,
    sufficient_decrease=None,
)


def state(**settings):
    return DualState(**{**DEFAULTS, **settings})


def vector(*entries):
    return torch.tensor(entries, dtype=torch.float64)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(nu=1.5), r"nu must be in \(0, 1\], got 1.5"),
        (dict(nu=0), r"nu must be in \(0, 1\], got 0"),
        (dict(nu=math.nan), r"nu must be in \(0, 1\], got nan"),
        (dict(beta_1=0.0), "beta_1 must be positive and finite, got 0.0"),
        (dict(beta_1=math.inf), "beta_1 must be positive and finite, got inf"),
        (dict(omega=0.9), "omega must be at least 1 and finite, got 0.9"),
        (dict(omega=math.inf), "omega must be at least 1 and finite, got inf"),
        (dict(sigma="dual"), "sigma must be 'penalty', 'paper', 'sqrt' or 'pi', got 'dual'"),
        (dict(sigma=-1.0), "sigma must be 'penalty', 'paper', 'sqrt' or 'pi', got -1.0"),
        (dict(sigma_1=-1.0), "sigma_1 must be nonnegative and finite, got -1.0"),
        (dict(sigma_1=math.inf), "sigma_1 must be nonnegative and finite, got inf"),
        (dict(beta_max=0.0), "beta_max must be positive, got 0.0"),
        (dict(beta_max=-0.5), "beta_max must be positive, got -0.5"),
        (dict(beta_max=1.0), "beta_max must be at least beta_1 = 2.0, got 1.0"),
        (dict(y_max=0.0), "y_max must be positive, got 0.0"),
        (
            dict(sufficient_decrease=1.0),
            r"sufficient_decrease must be None or in \(0, 1\), got 1.0",
        ),
        (
            dict(sufficient_decrease=0.0),
            r"sufficient_decrease must be None or in \(0, 1\), got 0.0",
        ),
    ],
)
def test_settings_out_of_range_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        state(**settings)


@pytest.mark.parametrize("name", [name for name in DEFAULTS if name != "sigma"])
def test_settings_must_be_numbers(name):
    with pytest.raises(TypeError, match=f"^{name} must be a number, got 'much'$"):
        state(**{name: "much"})


@pytest.mark.parametrize(
    "settings",
    [
        dict(nu=1.0),
        dict(omega=1.0),
        dict(sigma_1=0.0),
        dict(beta_1=0.5, beta_max=0.5),
        dict(y_max=0.5),
        dict(sufficient_decrease=0.01),
    ],
    ids=repr,
)
def test_settings_at_the_edge_of_their_range_are_taken(settings):
    dual = state(**settings)
    assert {name: getattr(dual, name) for name in settings} == settings


def test_a_fresh_state_has_no_multipliers():
    dual = state()
    assert (dual.started, dual.k, dual.beta, dual.start_norm) == (False, 1, 2.0, 0.0)
    assert dual.y.tolist() == []
    dual.start(vector(3.0, 4.0))
    assert (dual.started, dual.k, dual.beta, dual.last_norm) == (True, 1, 2.0, 5.0)
    assert dual.start_norm == pytest.approx(5**0.5)
    assert dual.y.tolist() == [0.0, 0.0]


def test_starting_again_forgets_everything():
    dual = state()
    dual.start(vector(3.0, 4.0), torch.tensor([True, False]))
    dual.update(vector(3.0, 4.0))
    dual.start(vector(1.0))
    assert (dual.k, dual.beta, dual.last_norm, dual.y.tolist()) == (1, 2.0, 1.0, [0.0])
    assert dual.weight(vector(-1.0)).item() == -2.0  # no longer an inequality


@pytest.mark.parametrize("sigma", ["paper", "penalty"])
def test_sequences_equal_a_hand_computation(sigma):
    dual = state(sigma=sigma, nu=0.5)
    residuals = [vector(3.0, 4.0), vector(0.6, -0.8), vector(0.0, 0.01), vector(0.0, 0.0)]
    start = 5.0
    dual.start(residuals[0])
    y, beta = [0.0, 0.0], 2.0
    for k, r in enumerate(residuals, start=1):
        a = math.hypot(*r.tolist())
        s = beta
        if sigma == "paper":
            s = 10.0
            if a > 0:
                bound = start**0.5 * math.log(2) ** 2 / (a**0.5 * (k + 1) * math.log(k + 2) ** 2)
                s = 10.0 * min(1.0, bound)
        record = dual.update(r)
        if a > 0:
            y = [y_i + s * a**-0.5 * r_i for y_i, r_i in zip(y, r.tolist(), strict=True)]
        assert record.sigma == pytest.approx(s, rel=1e-12)
        assert record.k == k
        assert record.beta == pytest.approx(beta, rel=1e-12)
        assert record.primal_residual == pytest.approx(a, rel=1e-12)
        assert record.y_norm == pytest.approx(math.hypot(*y), rel=1e-12)
        torch.testing.assert_close(dual.y, vector(*y), rtol=1e-12, atol=0.0)
        beta *= 3.0
        assert dual.beta == pytest.approx(beta, rel=1e-12)


def test_weight_at_nu_one_with_inequalities_is_classical():
    dual = state(nu=1.0)
    inequality = torch.tensor([False, True, True])
    dual.start(vector(1.0, 1.0, 1.0), inequality)
    dual.update(vector(1.0, 2.0, 3.0))
    torch.testing.assert_close(dual.y, vector(2.0, 4.0, 6.0), rtol=1e-12, atol=0.0)
    # β = 6: w = y + βA for equalities, max(y + βB, 0) for inequalities
    w = dual.weight(vector(-1.0, -1.0, 0.5))
    torch.testing.assert_close(w, vector(-4.0, 0.0, 9.0), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("nu", [0.3, 0.7, 1.0])
def test_the_penalty_rule_moves_y_to_the_weight(nu):
    dual = state(nu=nu)
    inequality = torch.tensor([False, True, True, True])
    dual.start(vector(1.0, 1.0, 1.0, 1.0), inequality)
    for seed in range(20):
        r = torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        w = dual.weight(r)
        dual.update(r)
        torch.testing.assert_close(dual.y, w, rtol=1e-12, atol=1e-12)
        assert (dual.y[inequality] >= 0).all()
        dual.beta = 2.0


def test_inactive_inequalities_have_weight_zero_and_keep_y_zero():
    dual = state(nu=0.7)
    inequality = torch.tensor([True, True])
    dual.start(vector(-1.0, -2.0), inequality)
    assert torch.equal(dual.weight(vector(-1.0, -2.0)), vector(0.0, 0.0))
    record = dual.update(vector(-1.0, -2.0))
    assert torch.equal(dual.y, vector(0.0, 0.0))
    assert record.primal_residual == 0.0


@pytest.mark.parametrize("nu", [0.3, 1.0])
def test_value_has_the_weight_as_gradient(nu):
    inequality = torch.tensor([False, True, True, True])
    dual = state(nu=nu)
    dual.start(vector(0.1, 0.2, 0.3, 0.1), inequality)
    dual.update(vector(0.5, 0.2, 0.3, 0.0))
    for r in (vector(0.4, -0.2, 0.1, -3.0), vector(0.4, 0.2, -0.05, 0.2)):
        w = dual.weight(r)
        for i in range(4):
            step = torch.zeros(4, dtype=torch.float64)
            step[i] = 1e-6
            slope = (dual.value(r + step) - dual.value(r - step)) / 2e-6
            assert w[i].item() == pytest.approx(slope, rel=1e-6, abs=1e-6)


BOTH = torch.tensor([False, True, True])
GROUPS = [slice(0, 1), slice(1, 2), slice(2, 3)]


@pytest.mark.parametrize("groups", [None, GROUPS, [slice(0, 2), slice(2, 3)]])
@pytest.mark.parametrize("inequality", [None, BOTH])
def test_value_and_weight_are_value_and_weight(inequality, groups):
    dual = state(nu=0.7)
    dual.start(vector(1.0, 1.0, 1.0), inequality, groups)
    dual.update(vector(0.5, 0.2, 0.3))
    r = vector(0.4, -0.2, 0.1)
    value, weight = dual.value_and_weight(r)
    assert value == pytest.approx(dual.value(r), rel=1e-12)
    assert torch.equal(weight, dual.weight(r))
    assert dual.value_and_weight(vector(0.4, math.nan, 0.1)) is None
    assert dual.value_and_weight(vector(math.inf, 0.0, 0.1)) is None


def test_value_and_weight_of_equalities_cost_one_norm(monkeypatch):
    calls = []
    norm = torch_powalm.dual.norm
    for module in ("dual", "functional"):
        monkeypatch.setattr(f"torch_powalm.{module}.norm", lambda *t: calls.append(t) or norm(*t))
    dual = state(nu=0.7)
    dual.start(vector(1.0, 1.0))
    calls.clear()
    dual.value_and_weight(vector(0.4, 0.3))
    assert len(calls) == 1


def test_the_value_is_the_formula_in_every_group():
    dual = state(nu=0.5)
    dual.start(vector(1.0, 1.0, 1.0), groups=[slice(0, 2), slice(2, 3)])
    dual.load_state_dict({**dual.state_dict(), "y": vector(1.0, -1.0, 2.0)})
    expected = (3 - 4 + 2 * 5**1.5 / 1.5) + (2 * 0.25 + 2 * 0.25**1.5 / 1.5)
    assert dual.value(vector(3.0, 4.0, 0.25)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("hold", "beta"), [(1.0, 2.0), (0.25, 0.5), (100.0, 50.0)])
def test_holding_y_moves_the_penalty_alone(hold, beta):
    dual = state(beta_max=50.0, nu=0.5)
    dual.start(vector(3.0, 4.0))
    dual.load_state_dict({**dual.state_dict(), "y": vector(0.6, 0.8)})
    record = dual.update(vector(0.3, -0.4), hold=hold)
    assert (record.k, record.beta, record.sigma) == (1, 2.0, 0.0)
    assert record.primal_residual == pytest.approx(0.5)
    assert record.y_norm == pytest.approx(1.0)
    assert (dual.beta, dual.k, dual.y.tolist()) == (beta, 2, [0.6, 0.8])
    assert dual.last_norm == 5.0


def test_the_penalty_stays_a_number():
    dual = state(omega=1e150, sigma="paper")
    dual.start(vector(1.0))
    for _ in range(4):
        dual.update(vector(1.0))
    assert dual.beta == 1e200
    dual.update(vector(1.0), hold=1e150)
    assert dual.beta == 1e200


def test_what_an_update_sees_is_the_residual_with_slacks_eliminated():
    dual = state(nu=1.0)
    dual.start(vector(1.0, 1.0, 1.0), BOTH)
    dual.load_state_dict({**dual.state_dict(), "y": vector(0.0, 1.0, 0.0)})
    # u = max(B, −y/β) = (−½, 0)
    assert dual.residual_norm(vector(0.3, -2.0, -3.0)) == pytest.approx(math.hypot(0.3, 0.5))
    record = dual.update(vector(0.3, -2.0, -3.0))
    assert dual.last_norm == pytest.approx(math.hypot(0.3, 0.5))
    assert record.primal_residual == pytest.approx(0.3)


def test_a_small_penalty_lets_slacks_reach_further():
    dual = state(nu=1.0, beta_1=0.5)
    dual.start(vector(1.0, 1.0), torch.tensor([False, True]))
    dual.load_state_dict({**dual.state_dict(), "y": vector(0.0, 1.0)})
    assert dual.residual_norm(vector(0.0, -3.0)) == 2.0  # u = max(B, −y/β)


def test_a_residual_of_zero_has_no_slack():
    dual = state(nu=0.5)
    dual.start(vector(1.0, 1.0), torch.tensor([False, True]))
    dual.load_state_dict({**dual.state_dict(), "y": vector(3.0, 1.0)})
    assert dual.residual_norm(vector(0.0, 0.0)) == 0.0
    assert dual.weight(vector(0.0, 0.0)).tolist() == [3.0, 1.0]


def test_the_step_of_the_paper_sees_every_group():
    dual = state(sigma="paper", nu=0.5)
    dual.start(vector(3.0, 4.0, 0.25), groups=[slice(0, 2), slice(2, 3)])
    assert dual.start_norm == pytest.approx(math.hypot(5**0.5, 0.25**0.5))
    record = dual.update(vector(6.0, 8.0, 1.0))
    decay = math.log(2) ** 2 / (2 * math.log(3) ** 2)
    ratio = math.hypot(5**0.5, 0.25**0.5) / math.hypot(10**0.5, 1.0)
    assert record.sigma == pytest.approx(10 * ratio * decay, rel=1e-12)
    sigma = record.sigma
    expected = sigma * vector(6 / 10**0.5, 8 / 10**0.5, 1.0)
    torch.testing.assert_close(dual.y, expected, rtol=1e-12, atol=0.0)


def test_block_coupling_gives_each_group_its_own_norm():
    dual = state(nu=0.5)
    dual.start(vector(1.0, 1.0, 1.0), groups=[slice(0, 2), slice(2, 3)])
    w = dual.weight(vector(3.0, 4.0, 0.25))
    expected = 2.0 * vector(3.0 / 5**0.5, 4.0 / 5**0.5, 0.25 / 0.5)
    torch.testing.assert_close(w, expected, rtol=1e-12, atol=0.0)


def test_beta_grows_only_without_sufficient_decrease():
    dual = state(sufficient_decrease=0.5)
    dual.start(vector(1.0))
    betas = []
    for violation in (0.9, 0.4, 0.3, 0.1):
        dual.update(vector(violation))
        betas.append(dual.beta)
    assert betas == [6.0, 6.0, 18.0, 18.0]
    dual.update(vector(0.05))  # exactly the factor is enough
    assert dual.beta == 18.0


def test_beta_and_y_stop_at_their_caps():
    dual = state(beta_max=5.0, y_max=1.5)
    dual.start(vector(4.0, -4.0))
    dual.update(vector(4.0, -4.0))
    assert dual.beta == 5.0
    assert torch.equal(dual.y, vector(1.5, -1.5))


def test_multipliers_stay_bounded_under_the_papers_rule():
    dual = state(sigma="paper", nu=0.6)
    dual.start(vector(2.0, 0.0))
    norms = [dual.update(vector(2.0, 0.0)).y_norm for _ in range(3000)]
    bound = (
        10.0
        * 2.0**0.6
        * sum(math.log(2) ** 2 / ((k + 1) * math.log(k + 2) ** 2) for k in range(1, 3001))
    )
    assert norms[-1] == pytest.approx(bound, rel=1e-10)
    assert norms[-1] - norms[999] < 0.05 * norms[-1]


def test_a_residual_that_is_not_finite_has_no_weight():
    dual = state()
    dual.start(vector(1.0, 1.0))
    assert dual.weight(vector(1.0, math.nan)) is None
    assert dual.weight(vector(math.inf, 0.0)) is None


@pytest.mark.parametrize("nu", [0.3, 1.0])
@pytest.mark.parametrize("beta_1", [1e-12, 1e12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_penalties_give_the_formulas_value(nu, beta_1, dtype):
    dual = state(nu=nu, beta_1=beta_1)
    for scale in (1e-25, 1e-3, 1e6):
        r = torch.tensor([3.0 * scale, 0.0, 4.0 * scale], dtype=dtype)
        dual.start(r)
        expected = torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64) * beta_1 * (5 * scale) ** nu
        torch.testing.assert_close(dual.weight(r).double(), expected, rtol=1e-5, atol=0.0)


def test_a_state_dict_continues_the_sequence():
    one, two = (
        state(sigma="paper", sufficient_decrease=0.9),
        state(sigma="paper", sufficient_decrease=0.9),
    )
    one.start(vector(1.0, 2.0))
    one.update(vector(0.5, 1.0))
    two.start(vector(9.0, 9.0))
    two.load_state_dict(one.state_dict())
    assert one.update(vector(0.3, 0.4)) == two.update(vector(0.3, 0.4))
    assert torch.equal(one.y, two.y)
    assert one.state_dict().keys() == two.state_dict().keys()


def test_a_state_is_restored_with_the_settings_of_another_one():
    one = state(sigma="paper", sufficient_decrease=0.9)
    one.start(vector(1.0, 2.0), BOTH[:2])
    one.update(vector(0.5, 1.0))
    settings = state(sigma="paper", sufficient_decrease=0.9)
    two = copy.copy(settings)
    two.start(one.y, BOTH[:2])
    two.load_state_dict(one.state_dict())
    assert not settings.started
    assert two.started
    assert (two.k, two.beta) == (one.k, one.beta)
    assert torch.equal(one.y, two.y)
    assert one.update(vector(0.3, 0.4)) == two.update(vector(0.3, 0.4))


def test_a_state_that_was_not_started_is_restored_as_a_fresh_one():
    used = state()
    used.start(vector(1.0, 2.0))
    used.update(vector(0.5, 1.0))
    again = copy.copy(used)
    again.load_state_dict({**state().state_dict(), "y": None})
    assert not again.started
    assert again.y.shape == (0,)
    assert (again.beta, again.k) == (again.beta_1, 1)
    assert (used.k, len(used.y)) == (2, 2)


def test_a_record_prints_in_one_line():
    dual = state()
    dual.start(vector(3.0, 4.0))
    assert str(dual.update(vector(3.0, 4.0))) == (
        "update 1: |A| 5.00e+00, beta 2.00e+00, sigma 2.00e+00, |y| 4.47e+00"
    )
