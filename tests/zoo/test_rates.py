"""Rates against scikit-learn's confusion matrix and against means written in numpy."""

import pytest

pytest.importorskip("sklearn")
import itertools

import numpy as np
import torch
from sklearn.metrics import confusion_matrix, precision_score

from torch_powalm import ConstraintRegistry, PowerALMOptimizer, zoo

RNG = np.random.default_rng(0)
N = 400
LABELS = RNG.integers(0, 2, N)
GROUP = RNG.integers(0, 3, N)
SCORES = RNG.normal(size=N) + 0.8 * LABELS - 0.5 * (GROUP == 1)
DECIDED = SCORES > 0


def logits(requires_grad=True):
    return torch.tensor(SCORES, requires_grad=requires_grad)


def value_of(constraints, name, value):
    """The block's value after one observation."""
    return constraints.blocks[name].from_statistics(value).double().numpy()


def measured(register, *batch, **named):
    constraints = ConstraintRegistry()
    entry = register(constraints, "rate")
    return value_of(constraints, "rate", entry(logits(), *batch, **named).strict)


def rates_by_group(hit, among):
    return np.array([hit[among & (GROUP == g)].mean() for g in range(3)])


def gaps(rates):
    return [rates[a] - rates[b] for a, b in itertools.product(range(3), repeat=2) if a != b]


def labels():
    return torch.tensor(LABELS)


def group():
    return torch.tensor(GROUP)


def test_false_negatives_and_positives_are_those_of_the_confusion_matrix():
    tn, fp, fn, tp = confusion_matrix(LABELS, DECIDED).ravel()
    missed = measured(lambda c, n: zoo.false_negative_rate(c, n, bound=0.1), labels())
    assert missed == pytest.approx([fn / (fn + tp) - 0.1])
    alarms = measured(lambda c, n: zoo.false_positive_rate(c, n, bound=0.1), labels())
    assert alarms == pytest.approx([fp / (fp + tn) - 0.1])
    right = measured(lambda c, n: zoo.precision(c, n, bound=0.9), labels())
    assert right == pytest.approx([0.9 - precision_score(LABELS, DECIDED)])


def test_coverage_has_two_sides():
    found = measured(lambda c, n: zoo.coverage(c, n, low=0.2, high=0.3))
    assert found == pytest.approx([0.2 - DECIDED.mean(), DECIDED.mean() - 0.3])


def test_gaps_are_those_of_all_pairs_of_groups():
    everyone, y = np.ones(N, dtype=bool), LABELS == 1
    parity = measured(
        lambda c, n: zoo.demographic_parity(c, n, bound=0.02, groups=3), group=group()
    )
    assert parity == pytest.approx(np.array(gaps(rates_by_group(DECIDED, everyone))) - 0.02)
    chance = measured(
        lambda c, n: zoo.equal_opportunity(c, n, bound=0.02, groups=3), labels(), group=group()
    )
    assert chance == pytest.approx(np.array(gaps(rates_by_group(DECIDED, y))) - 0.02)
    odds = measured(
        lambda c, n: zoo.equalized_odds(c, n, bound=0.02, groups=3), labels(), group=group()
    )
    both = gaps(rates_by_group(DECIDED, y)) + gaps(rates_by_group(DECIDED, ~y))
    assert odds == pytest.approx(np.array(both) - 0.02)


def test_intersections_of_attributes_are_groups():
    sex, race = GROUP % 2, RNG.integers(0, 3, N)
    constraints = ConstraintRegistry()
    entry = zoo.false_negative_rate(constraints, "rate", bound=0.0, groups=(2, 3))
    parts = torch.tensor(sex), torch.tensor(race)
    y = LABELS == 1
    expected = [(~DECIDED)[y & (sex == s) & (race == r)].mean() for s in range(2) for r in range(3)]
    for given in (parts, torch.stack(parts, 1)):
        found = value_of(constraints, "rate", entry(logits(), labels(), group=given).strict)
        assert found == pytest.approx(expected)


def test_multi_class_rates_follow_the_largest_logit():
    scores = RNG.normal(size=(N, 4))
    target = RNG.integers(0, 4, N)
    decided = scores.argmax(1)
    z = torch.tensor(scores)
    constraints = ConstraintRegistry()
    missed = zoo.false_negative_rate(constraints, "missed", bound=0.0, positive=range(4))
    found = value_of(constraints, "missed", missed(z, torch.tensor(target)).strict)
    matrix = confusion_matrix(target, decided)
    assert found == pytest.approx(1 - matrix.diagonal() / matrix.sum(1))
    parity = zoo.demographic_parity(constraints, "parity", bound=0.0, groups=3, positive=[1, 2])
    found = value_of(constraints, "parity", parity(z, group=group()).strict)
    everyone = np.ones(N, dtype=bool)
    expected = [gaps(rates_by_group(decided == c, everyone)) for c in (1, 2)]
    assert found == pytest.approx(np.ravel(expected))


def test_two_logits_decide_as_one():
    constraints = ConstraintRegistry()
    entry = zoo.false_negative_rate(constraints, "rate", bound=0.0)
    one, z = entry(logits(), labels()), logits()
    two = entry(torch.stack([-z / 2, z / 2], 1), labels())
    column = entry(z.unsqueeze(1), labels())
    torch.testing.assert_close(one.strict, two.strict)
    torch.testing.assert_close(one.proxy, two.proxy)
    torch.testing.assert_close(one.proxy, column.proxy)


@pytest.mark.parametrize("sharpness", [1.0, 1e4])
def test_the_proxy_is_smooth_and_sharpens_to_the_rate(sharpness):
    constraints = ConstraintRegistry()
    entry = zoo.precision(constraints, "rate", bound=0.5, sharpness=sharpness)
    value = entry(logits(), labels())
    assert torch.allclose(value.proxy, value.strict, atol=1e-3 * N) == (sharpness > 1)
    few = logits()[:12].detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: entry(z, labels()[:12]).proxy, few)


@pytest.mark.parametrize("parts", [2, 5])
def test_sums_of_parts_are_the_sums_of_the_whole(parts):
    constraints = ConstraintRegistry()
    entry = zoo.equalized_odds(constraints, "odds", bound=0.1, groups=3)
    whole = entry(logits(), labels(), group=group())
    rows = np.array_split(np.arange(N), parts)  # ranks or micro-batches
    pieces = [entry(logits()[r], labels()[r], group=group()[r]) for r in rows]
    torch.testing.assert_close(sum(p.strict for p in pieces), whole.strict)
    torch.testing.assert_close(sum(p.proxy for p in pieces), whole.proxy)


def test_an_absent_group_contributes_nothing():
    net = torch.nn.Linear(2, 1)
    constraints = ConstraintRegistry()
    parity = zoo.demographic_parity(constraints, "parity", bound=0.0)
    optimizer = PowerALMOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), constraints, beta_1=1)
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    optimizer.augment(net(x).sum() * 0, parity=parity(net(x), group=torch.zeros(8))).backward()
    assert all(p.grad is None or not p.grad.any() for p in net.parameters())
    optimizer.step()
    assert constraints.violations()["parity"].never_seen == (0, 1)


def test_augment_takes_gradients_from_the_proxy_and_reports_the_strict_value():
    z = torch.nn.Parameter(logits().detach())
    constraints = ConstraintRegistry()
    missed = zoo.false_negative_rate(constraints, "missed", bound=0.1)
    optimizer = PowerALMOptimizer(torch.optim.SGD([z], lr=0.0), constraints, beta_1=1.0)
    value = missed(z, labels())
    optimizer.augment(z.sum() * 0, missed=value).backward()
    assert z.grad.abs().sum() > 0
    optimizer.step()
    rate = (~DECIDED)[LABELS == 1].mean()
    assert float(constraints.values()["missed"]) == pytest.approx(rate - 0.1, rel=1e-6)
    constraints.observe(missed=value)
    assert constraints.take_observed()["missed"].max == pytest.approx(rate - 0.1, rel=1e-6)
