"""Gradient accumulation, with and without a window over the micro-batches."""

import pytest
import torch
from torch import nn

from tests.training.small_training import (
    F64,
    HYBRID,
    NU,
    Average,
    Net,
    Twin,
    assert_same,
    batches,
    constrained,
    flat,
    measure,
    registry,
    static,
    two_nets,
)
from tests.training.test_augmented_gradient import BASES
from torch_powalm import ConstraintRegistry


def whole_step(model: Net, base: torch.optim.Optimizer, twin: Twin) -> None:
    """One step with the full batch, as gradient accumulation should be."""
    base.zero_grad()
    losses, average = [], []
    for x, target in batches():
        loss, values = measure(model, x, target)
        losses.append(loss)
        average.append(values)
    count = torch.stack([v["class_loss"][1] for v in average])
    class_loss = torch.stack([v["class_loss"][0] for v in average])
    r = torch.cat(
        [
            static(model),
            torch.stack([v["balance"] for v in average]).mean().reshape(1),
            (class_loss * count).sum(0) / count.sum(0),
        ]
    )
    (sum(losses) / len(losses) + twin.value(r)).backward()
    base.step()


@NU
def test_accumulation_with_a_window_equals_the_full_batch(nu):
    ours, theirs = two_nets()
    optimizer = constrained(BASES["adam"](ours.parameters()), registry(ours), nu=nu)
    plain, twin = BASES["adam"](theirs.parameters()), Twin(HYBRID, nu)
    for _ in range(4):
        with torch.no_grad():
            window = [measure(ours, x, target)[1] for x, target in batches()]
        optimizer.zero_grad()
        for x, target in batches():
            loss, values = measure(ours, x, target)
            (optimizer.augment(loss, window=window, **values) / len(window)).backward()
        optimizer.step()
        whole_step(theirs, plain, twin)
        assert_same(ours, theirs)
    assert optimizer.epoch.steps == 4


@NU
def test_accumulation_without_a_window_weighs_every_micro_batch_by_its_own_violation(nu):
    ours, theirs = two_nets()
    optimizer = constrained(torch.optim.SGD(ours.parameters(), 0.05), registry(ours), nu=nu)
    optimizer.zero_grad()
    for x, target in batches():
        loss, values = measure(ours, x, target)
        (optimizer.augment(loss, **values) / 3).backward()
    optimizer.step()

    plain, twin, average = torch.optim.SGD(theirs.parameters(), 0.05), Twin(HYBRID, nu), Average()
    A_static = static(theirs)
    for x, target in batches():
        loss, values = measure(theirs, x, target)
        average.add(values)
        ((loss + twin.value(torch.cat([A_static.detach(), flat(values)]))) / 3).backward()
    twin.value(torch.cat([A_static, average.value()])).backward()  # once, whatever the window
    plain.step()
    assert_same(ours, theirs)

    exact = Net()
    whole_step(exact, torch.optim.SGD(exact.parameters(), 0.05), Twin(HYBRID, nu))
    bias = (ours.second.weight - exact.second.weight).detach().norm()
    assert bias > 1e-4  # what the window is for


def test_a_micro_batch_whose_gradient_is_zero_counts_in_the_epoch():
    """As with a hinge that all samples have passed, and an inactive constraint."""
    p = nn.Parameter(torch.tensor([2.0], dtype=F64))
    constraints = ConstraintRegistry()
    constraints.inequality("hinge", size=1)
    optimizer = constrained(torch.optim.SGD([p], lr=0.1), constraints, nu=1.0)
    for x in (-3.0, 4.0):
        (optimizer.augment((p * x).relu().sum(), hinge=p * x) / 2).backward()
    optimizer.step()
    record = optimizer.update_multipliers()
    assert record.violations["hinge"].max == pytest.approx((-6 + 8) / 2, rel=1e-12)


def test_a_window_is_exact_for_statistics_too():
    x, _ = batches()[0]
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=F64)

    def statistics(model, rows):
        return torch.stack([(model(x[rows])[:, 0] * weights[rows]).sum(), weights[rows].sum()])

    grads = []
    for parts in ([slice(0, 4)], [slice(0, 1), slice(1, 4)]):
        model = Net()
        constraints = ConstraintRegistry()
        constraints.equality("rate", size=1, from_statistics=lambda s: s[:1] / s[1:] - 0.3)
        optimizer = constrained(torch.optim.SGD(model.parameters(), 0.1), constraints, nu=0.5)
        with torch.no_grad():
            window = [{"rate": statistics(model, rows)} for rows in parts]
        for rows in parts:
            loss = model.second.weight.sum() * 0
            loss = optimizer.augment(loss, window=window, rate=statistics(model, rows))
            (loss / len(parts)).backward()
        grads.append(model.second.weight.grad)
        optimizer.step()
        assert_same(
            constraints.epoch_sums(["rate"])["rate"].total,
            sum((w["rate"] for w in window), torch.zeros(2, dtype=F64)),
        )
    assert float(grads[0].norm()) > 0.1
    assert_same(grads[1], grads[0])


def test_a_parameter_only_block_enters_once_whatever_the_accumulation():
    """Four micro-batches of the same data, each a quarter of the loss."""
    model, once = two_nets()
    x, target = batches()[0]
    for net, parts in ((model, 4), (once, 1)):
        optimizer = constrained(
            torch.optim.SGD(net.parameters(), 0.1), registry(net, batch=False), nu=0.7
        )
        for _ in range(parts):
            (measure(net, x, target)[0] / parts).backward()
        optimizer.step()
    assert_same(model, once)
