"""Batches as a newcomer may have them: other types of labels, shapes of scores, empty batches."""

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from torch_powalm import ConstraintRegistry, PowerALMOptimizer, zoo

Y = torch.tensor([0, 1, 0, 1, 1, 0])
Y3 = torch.tensor([0, 1, 2, 0, 1, 2])
Z, Z3 = torch.randn(6, generator=torch.Generator().manual_seed(0)), torch.eye(3)[Y3].roll(1, 0)


def rate(**settings):
    return zoo.false_negative_rate(ConstraintRegistry(), "missed", bound=0.1, **settings)


@pytest.mark.parametrize(
    "change",
    [torch.Tensor.bool, torch.Tensor.float, torch.Tensor.half, lambda y: y[:, None], one_hot],
)
def test_labels_and_groups_may_have_any_type_or_be_one_hot(change):
    assert torch.equal(rate()(Z, change(Y)).strict, rate()(Z, Y).strict)
    parity = zoo.demographic_parity(ConstraintRegistry(), "parity", bound=0.1)
    assert torch.equal(parity(Z, group=change(Y)).strict, parity(Z, group=Y).strict)
    means = zoo.class_loss(ConstraintRegistry(), "loss", classes=2, bound=0.5)
    assert torch.equal(means(Z, change(Y))[0], means(Z, Y)[0])


def test_one_hot_rows_of_several_classes_are_labels():
    assert torch.equal(rate()(Z3, one_hot(Y3)).strict, rate()(Z3, Y3).strict)
    assert torch.equal(rate()(Z3, one_hot(Y3).float()).strict, rate()(Z3, Y3).strict)


@pytest.mark.parametrize("change", [torch.Tensor.half, torch.Tensor.bfloat16, lambda z: z[:, None]])
def test_scores_may_be_narrow_or_a_column(change):
    found = rate()(change(Z), Y)
    assert found.proxy.dtype == torch.float32
    assert torch.equal(found.strict, rate()(Z, Y).strict)


EMPTY = {
    "rate": (
        lambda c, m: zoo.false_negative_rate(c, "block", bound=0.1),
        lambda e, x, z: e(z, x.sum(1) > 0),
    ),
    "parity": (
        lambda c, m: zoo.demographic_parity(c, "block", bound=0.1, groups=3),  # one is absent
        lambda e, x, z: e(z, group=x.sum(1) > 0),
    ),
    "classes": (
        lambda c, m: zoo.class_loss(c, "block", classes=3, bound=0.1),
        lambda e, x, z: e(z.square().reshape(-1), x.sum(1) > 0),
    ),
    "worst": (
        lambda c, m: zoo.worst_group_loss(c, "block", groups=3, bound=0.1),
        lambda e, x, z: e(z.square().reshape(-1), x.sum(1) > 0),
    ),
    "quantile": (
        lambda c, m: zoo.loss_quantile(c, "block", quantile=0.9, bound=0.1),
        lambda e, x, z: e(z.square().reshape(-1)),
    ),
    "points": (lambda c, m: zoo.bounded(c, "block", m, low=0.1), lambda e, x, z: e(x)),
    "slopes": (
        lambda c, m: zoo.monotone(c, "block", m, increasing=[0]),
        lambda e, x, z: e(x),
    ),
}


@pytest.mark.filterwarnings("ignore::torch_powalm.ConstraintWarning")
@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_batch_changes_nothing_and_training_goes_on(name):
    register, call = EMPTY[name]
    torch.manual_seed(0)
    net, constraints = nn.Linear(4, 1), ConstraintRegistry()
    entry = register(constraints, net)
    adam = torch.optim.Adam(net.parameters(), 1e-2)
    optimizer = PowerALMOptimizer(adam, constraints, beta_1=1.0, updates=4)
    for step in range(12):
        x = torch.randn(0 if step == 5 else 20, 4)
        optimizer.zero_grad()
        z = net(x)
        loss = (z.sum() - 1.0) ** 2 / 400
        optimizer.augment(loss, block=call(entry, x, z)).backward()
        assert all(bool(p.grad.isfinite().all()) for p in net.parameters())
        optimizer.step()
    assert optimizer.dual.k > 2
    assert all(bool(p.isfinite().all()) for p in net.parameters())
