"""Every base optimizer against a loop that differentiates L_β."""

import pytest
import torch
from torch import nn, optim

from tests.training.small_training import (
    F64,
    HYBRID,
    Net,
    Signs,
    Twin,
    assert_same,
    constrained,
    multipliers,
    train,
    train_twin,
    wrapped,
)
from torch_powalm import ConstraintRegistry

# Every base


def of_torch(name):
    """An optimizer that older versions of torch do not have."""
    if not hasattr(optim, name):
        pytest.skip(f"this torch has no {name}")
    return getattr(optim, name)


BASES = {
    "SGD": lambda p: optim.SGD(p, lr=0.02),
    "SGD nesterov": lambda p: optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD foreach": lambda p: optim.SGD(p, lr=0.02, momentum=0.9, foreach=True),
    "SGD fused": lambda p: optim.SGD(p, lr=0.02, momentum=0.9, fused=True),
    "Adam": lambda p: optim.Adam(p, lr=0.02),
    "Adam amsgrad": lambda p: optim.Adam(p, lr=0.02, amsgrad=True),
    "Adam foreach": lambda p: optim.Adam(p, lr=0.02, foreach=True),
    "Adam fused": lambda p: optim.Adam(p, lr=0.02, fused=True),
    "Adam with a tensor lr": lambda p: optim.Adam(p, lr=torch.tensor(0.02, dtype=F64)),
    "AdamW": lambda p: optim.AdamW(p, lr=0.02, weight_decay=0.1),
    "AdamW fused amsgrad": lambda p: optim.AdamW(p, lr=0.02, fused=True, amsgrad=True),
    "NAdam": lambda p: optim.NAdam(p, lr=0.02),
    "RAdam": lambda p: optim.RAdam(p, lr=0.02),
    "Adamax": lambda p: optim.Adamax(p, lr=0.02),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.05),
    "Adagrad fused": lambda p: optim.Adagrad(p, lr=0.05, fused=True),
    "Adadelta": lambda p: optim.Adadelta(p, lr=1.0),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "Rprop": lambda p: optim.Rprop(p, lr=0.01),
    "ASGD": lambda p: optim.ASGD(p, lr=0.02),
    "Adafactor": lambda p: of_torch("Adafactor")(p, lr=0.02),
    "Muon": lambda p: of_torch("Muon")(p, lr=0.02),
    "Prodigy": lambda p: pytest.importorskip("prodigyopt").Prodigy(p, lr=1.0, d0=0.01),
}


@pytest.mark.parametrize("make", BASES.values(), ids=BASES)
def test_every_base_equals_a_loop_that_differentiates_the_full_lagrangian(make):
    ours, theirs = Net(), Net()
    optimizer, twin = wrapped(ours, make(ours.parameters())), Twin(HYBRID, 0.7)
    train(ours, optimizer)
    train_twin(theirs, make(theirs.parameters()), twin)
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)
    assert (ours.first.weight - Net().first.weight).detach().norm() > 0.05  # it did move


SCHEDULE_FREE = {
    "AdamWScheduleFree": lambda p, of: of.AdamWScheduleFree(p, lr=0.02, warmup_steps=2),
    "SGDScheduleFree": lambda p, of: of.SGDScheduleFree(p, lr=0.1),
}


@pytest.mark.parametrize("make", SCHEDULE_FREE.values(), ids=SCHEDULE_FREE)
def test_a_schedule_free_base_is_switched_between_training_and_evaluation(make):
    of = pytest.importorskip("schedulefree")
    ours, theirs = Net(), Net()
    optimizer, plain = wrapped(ours, make(ours.parameters(), of)), make(theirs.parameters(), of)
    twin = Twin(HYBRID, 0.7)
    for _ in range(2):
        optimizer.train()
        plain.train()
        train(ours, optimizer, epochs=1)
        train_twin(theirs, plain, twin, epochs=1)
        assert_same(ours, theirs)
        training = ours.first.weight.detach().clone()
        optimizer.eval()
        plain.eval()
        assert_same(ours, theirs)
        assert not torch.equal(ours.first.weight, training)
    assert_same(multipliers(optimizer), twin.y)


def test_a_base_without_a_learning_rate_works():
    p = nn.Parameter(torch.tensor([1.0, -1.0], dtype=F64))
    constraints = ConstraintRegistry()
    constraints.equality("zero", lambda: p)
    optimizer = constrained(Signs([p]), constraints)
    optimizer.step()
    assert_same(p.detach(), torch.tensor([0.9, -0.9], dtype=F64))


def test_a_base_that_maximizes_is_refused():
    """It would climb the penalty too, and leave the feasible set as fast as it can."""
    with pytest.raises(ValueError, match="maximize"):
        wrapped(Net(), optim.SGD(Net().parameters(), lr=0.1, maximize=True))


def test_complex_parameters_are_trained():
    p = nn.Parameter(torch.tensor([3 + 4j, 1j], dtype=torch.complex128))
    constraints = ConstraintRegistry()
    constraints.equality("unit", lambda: torch.view_as_real(p).square().sum(1) - 1)
    optimizer = constrained(optim.SGD([p], lr=0.01), constraints, nu=1.0)
    optimizer.step()
    expected = torch.tensor([(3 + 4j) * (1 - 0.01 * 2 * 24), 1j], dtype=torch.complex128)
    torch.testing.assert_close(p.detach(), expected, rtol=1e-12, atol=0)
