"""Confidence bounds: equal to scipy's where it has them, covering and not vacuous elsewhere."""

import pytest

pytest.importorskip("scipy")
import math

import numpy as np
from scipy.stats import binomtest

from torch_powalm.certification.betting_bound import _stakes as stakes_of
from torch_powalm.certification.betting_bound import enough_samples, upper_mean
from torch_powalm.certification.binomial_bounds import (
    Counts,
    disjoint_bound,
    lower_rate,
    split,
    union_bound,
    upper_rate,
)


@pytest.mark.parametrize(("k", "n"), [(0, 50), (1, 50), (7, 200), (50, 50)])
def test_bounds_of_a_rate_are_those_of_clopper_and_pearson(k, n):
    below = binomtest(k, n, alternative="less").proportion_ci(0.97, method="exact")
    above = binomtest(k, n, alternative="greater").proportion_ci(0.97, method="exact")
    assert upper_rate(Counts(k, n), 0.03) == pytest.approx(below.high, rel=1e-10)
    assert lower_rate(Counts(k, n), 0.03) == pytest.approx(above.low, rel=1e-10)


def gap(rates):
    return rates[..., 0] - rates[..., 1]


@pytest.mark.parametrize("bound", [union_bound, disjoint_bound])
@pytest.mark.parametrize(
    ("n", "p"), [((12, 9), (0.3, 0.2)), ((9, 12), (0.05, 0.1)), ((6, 14), (0.9, 0.6))]
)
def test_bounds_of_a_difference_cover_it(bound, n, p):
    """All outcomes of two small groups, weighted by their probabilities: nothing is simulated."""
    wrong = 0.0
    for k in range(n[0] + 1):
        for j in range(n[1] + 1):
            chance = math.comb(n[0], k) * p[0] ** k * (1 - p[0]) ** (n[0] - k)
            chance *= math.comb(n[1], j) * p[1] ** j * (1 - p[1]) ** (n[1] - j)
            groups = [Counts(k, n[0]), Counts(j, n[1])]
            wrong += chance * (bound(gap, groups, (1, -1), 0.1) < p[0] - p[1])
    assert 0 < wrong <= 0.1


@pytest.mark.parametrize(
    ("groups", "factor"),
    [
        ([Counts(300, 1000), Counts(290, 1000)], 1.15),
        ([Counts(30, 300), Counts(60, 700)], 1.5),
        ([Counts(10, 50), Counts(400, 2000)], 1.5),
        ([Counts(9, 450), Counts(12, 550)], 1.7),
    ],
)
def test_bounds_of_disjoint_groups_are_nearly_as_wide_as_those_of_independent_rates(groups, factor):
    (k, n), (j, m) = groups
    estimate = k / n - j / m
    widths = upper_rate(groups[0], 0.05) - k / n, j / m - lower_rate(groups[1], 0.05)
    assert disjoint_bound(gap, groups, (1, -1), 0.05) - estimate <= factor * math.hypot(*widths)


def test_a_rate_that_does_not_matter_costs_nothing():
    groups = [Counts(3, 40), Counts(5, 30)]
    for bound in (union_bound, disjoint_bound):
        found = bound(lambda rates: rates[..., 0], groups, (1, 0), 0.05)
        assert found == pytest.approx(upper_rate(groups[0], 0.05), rel=1e-12)


def test_the_split_of_the_error_gives_the_smaller_group_more():
    even, (small, large) = split(0.05, [200, 200]), split(0.05, [100, 900])
    assert even == pytest.approx([0.025, 0.025], rel=1e-9)
    assert small + large == pytest.approx(0.05, rel=1e-9)
    assert small > 2 * large > 0


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-2.0, 3.0)])
def test_the_betting_bound_covers_the_mean_and_follows_the_variance(low, high):
    generator = np.random.default_rng(1)
    samples = low + (high - low) * generator.beta(1, 9, (300, 400))
    truth, deviation = low + (high - low) * 0.1, (high - low) * 0.0905
    bounds = np.array([upper_mean(row, low, high, 0.05) for row in samples])
    assert (bounds < truth).mean() <= 0.05
    normal = 1.645 * deviation / 20  # the width of the central limit theorem
    assert np.mean(bounds - truth) <= 1.6 * normal
    hoeffding = (high - low) * math.sqrt(math.log(20) / 800)
    assert np.mean(bounds - truth) <= 0.35 * hoeffding


def test_stakes_depend_on_the_rounds_before_them_only():
    x = np.random.default_rng(5).beta(1, 4, 60)
    stakes = stakes_of(x, 0.05)
    for k in (0, 1, 7, 30, 59):
        other = np.concatenate([x[:k], 1 - x[k:]])
        np.testing.assert_array_equal(stakes_of(other, 0.05)[: k + 1], stakes[: k + 1])
    assert not np.array_equal(stakes_of(1 - x, 0.05), stakes)


@pytest.mark.parametrize("n", [1, 2, 3, 50, 400])
@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_a_constant_sample_has_a_bound_above_it(n, value):
    bound = upper_mean(np.full(n, value), 0.0, 1.0, 0.05)
    assert value <= bound <= 1.0
    assert (bound < 1.0) == (n >= 3 and value < 1.0)


def test_means_of_many_values_have_nearly_the_width_of_the_central_limit_theorem():
    generator = np.random.default_rng(6)
    for values in (generator.beta(2, 8, 3000), (generator.random(3000) < 0.3) * 1.0):
        normal = 2.326 * values.std() / math.sqrt(3000)
        assert 0.8 * normal < upper_mean(values, 0.0, 1.0, 0.01) - values.mean() < 1.4 * normal


def test_the_betting_bound_does_not_depend_on_a_sorted_file():
    """Bets on sorted values would go up against every mean; the true one is refuted then."""
    values = np.sort(np.random.default_rng(2).random(2000))
    assert upper_mean(values, 0.0, 1.0, 0.05) > 0.5
    assert upper_mean(values, 0.0, 1.0, 0.05) < 0.53


def test_the_betting_bound_shrinks_within_the_stated_number_of_samples():
    generator = np.random.default_rng(3)
    values = generator.beta(2, 8, 300)
    needed = math.ceil(enough_samples(values, 0.0, 1.0, 0.05, 0.01))
    more = generator.choice(values, needed)
    assert upper_mean(more, 0.0, 1.0, 0.05) - more.mean() <= 0.01
    assert needed <= 3 * 2 * math.log(20) * values.var() / 0.01**2
