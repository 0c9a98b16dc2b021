"""Bounds on losses against means and quantiles written in numpy."""

import numpy as np
import pytest
import torch

from torch_powalm import ConstraintRegistry, zoo

RNG = np.random.default_rng(1)
N = 30
LOSSES = RNG.exponential(size=N)
GROUP = RNG.integers(0, 3, N)
MEANS = np.array([LOSSES[GROUP == g].mean() for g in range(3)])


def losses():
    return torch.tensor(LOSSES, requires_grad=True)


def registered(name, **settings):
    constraints = ConstraintRegistry()
    return constraints, getattr(zoo, name)(constraints, "block", **settings)


@pytest.mark.parametrize("name", ["class_loss", "group_loss"])
def test_means_by_class_and_group(name):
    sizes = {"classes" if name == "class_loss" else "groups": 4}  # the last one is absent
    _, entry = registered(name, bound=0.5, **sizes)
    value, count = entry(losses(), torch.tensor(GROUP))
    assert value[:3].detach().numpy() == pytest.approx(MEANS - 0.5)
    assert count.tolist() == [*np.bincount(GROUP), 0]
    assert torch.autograd.gradcheck(lambda x: entry(x, torch.tensor(GROUP))[0], (losses(),))


def test_the_worst_group_is_the_largest_mean():
    constraints, entry = registered("worst_group_loss", groups=4, bound=0.5)
    read = constraints.blocks["block"].from_statistics
    whole = entry(losses(), torch.tensor(GROUP))
    assert read(whole).item() == pytest.approx(MEANS.max() - 0.5)
    parts = [entry(losses()[i::2], torch.tensor(GROUP)[i::2]) for i in range(2)]
    assert read(sum(parts)).item() == pytest.approx(MEANS.max() - 0.5)
    (grad,) = torch.autograd.grad(read(entry(x := losses(), torch.tensor(GROUP))), x)
    assert set(GROUP[grad.numpy() != 0]) == {int(MEANS.argmax())}


def test_each_sample_has_its_own_entry():
    _, entry = registered("sample_loss", samples=100, bound=0.5)
    index = RNG.permutation(100)[:N]
    value, count = entry(losses(), torch.tensor(index))
    assert value[torch.tensor(index)].detach().numpy() == pytest.approx(LOSSES - 0.5)
    assert sorted(count.nonzero().flatten().tolist()) == sorted(index)


def test_a_quantile_is_met_exactly_where_numpy_says():
    for quantile in (0.5, 0.9):
        edge = np.quantile(LOSSES, quantile, method="inverted_cdf")
        for bound, met in ((edge * 1.0001, True), (edge * 0.9999, False)):
            constraints, entry = registered("loss_quantile", quantile=quantile, bound=bound)
            read = constraints.blocks["block"].from_statistics
            value = entry(losses())
            assert (read(value.strict).item() <= 1e-12) == met
            assert torch.autograd.gradcheck(lambda x: entry(x).proxy, (losses(),))  # noqa: B023


def test_the_proxy_of_a_quantile_has_no_units():
    _, small = registered("loss_quantile", quantile=0.9, bound=1.0)
    _, large = registered("loss_quantile", quantile=0.9, bound=1e6)
    torch.testing.assert_close(small(losses()).proxy, large(1e6 * losses()).proxy)
