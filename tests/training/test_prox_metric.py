"""Prox terms in the metric of the base's step."""

import warnings

import pytest
import torch
from torch import nn, optim
from torch.nn.functional import cross_entropy

from torch_powalm import ConstraintRegistry, PowerALMOptimizer, prox

F64 = torch.float64


def digits():
    data = pytest.importorskip("sklearn.datasets").load_digits()
    x = torch.tensor(data.data, dtype=torch.float32) / 16
    return x, torch.tensor(data.target)


BASES = {
    "SGD": lambda params: optim.SGD(params, lr=0.1, momentum=0.9),
    "Adam": lambda params: optim.Adam(params, lr=3e-3),
    "AdamW": lambda params: optim.AdamW(params, lr=3e-3),
}


@pytest.mark.parametrize("base", BASES)
def test_l1_makes_zeros_under_every_base(base):
    x, target = digits()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    weights = [model[0].weight, model[2].weight]
    optimizer = PowerALMOptimizer(
        BASES[base](model.parameters()),
        ConstraintRegistry(),
        prox={w: prox.L1(1e-2) for w in weights},
    )
    for _ in range(300):
        batch = torch.randint(len(x), (128,))
        optimizer.zero_grad()
        cross_entropy(model(x[batch]), target[batch]).backward()
        optimizer.step()
    zeros = sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)
    accuracy = (model(x).argmax(1) == target).float().mean().item()
    assert zeros >= 0.4
    assert accuracy >= 0.7, "zeros of a model that has learned nothing"


SCALING = {
    "Adam": lambda p: optim.Adam([p], lr=0.05),
    "AdamW": lambda p: optim.AdamW([p], lr=0.05),
    "Adam amsgrad": lambda p: optim.Adam([p], lr=0.05, amsgrad=True),
    "NAdam": lambda p: optim.NAdam([p], lr=0.05),
    "RMSprop": lambda p: optim.RMSprop([p], lr=0.01),
    "Adagrad": lambda p: optim.Adagrad([p], lr=0.5, lr_decay=1e-3),
}


@pytest.mark.parametrize("base", SCALING)
def test_the_minimum_is_that_of_the_l1_term(base):
    """min Σ a_i (x_i − c_i)²/2 + w|x_i| has x_i = shrink(c_i, w/a_i)."""
    a = torch.tensor([1.0, 4.0, 0.2, 1.0], dtype=F64)
    c = torch.tensor([1.0, -1.0, 1.0, 0.05], dtype=F64)
    p = nn.Parameter(torch.full((4,), 0.5, dtype=F64))
    optimizer = PowerALMOptimizer(SCALING[base](p), ConstraintRegistry(), prox={p: prox.L1(0.3)})
    for _ in range(3000):
        optimizer.zero_grad()
        (a * (p - c).square()).sum().div(2).backward()
        optimizer.step()
    expected = c.sign() * (c.abs() - 0.3 / a).clamp(min=0)
    torch.testing.assert_close(p.detach(), expected, rtol=0, atol=2e-2)
    assert ((p == 0) == (expected == 0)).all()


def test_an_entry_that_has_no_gradient_becomes_0():
    p = nn.Parameter(torch.tensor([1.0, 1.0], dtype=F64))
    optimizer = PowerALMOptimizer(
        optim.Adam([p], lr=0.1), ConstraintRegistry(), prox={p: prox.L1(0.1)}
    )
    for i in range(12):
        assert p[1].item() == pytest.approx(max(0.0, 1 - 0.11 * i))  # at most 1.1 lr
        optimizer.zero_grad()
        (p[0] - 1).square().backward()
        optimizer.step()
    assert p[1] == 0


def test_a_parameter_without_gradient_uses_the_learning_rate():
    p, q = nn.Parameter(torch.ones(1, dtype=F64)), nn.Parameter(torch.ones(1, dtype=F64))
    base = optim.Adam([p, q], lr=0.5)
    optimizer = PowerALMOptimizer(base, ConstraintRegistry(), prox={q: prox.L1(0.1)})
    p.square().sum().backward()
    optimizer.step()
    assert q.item() == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("base", "term", "names"),
    [
        (optim.Adam, prox.L2Group(0.1, 0), "L2Group"),
        (optim.Adamax, prox.L1(0.1), "L1"),
    ],
)
def test_a_term_that_does_not_fit_the_steps_warns(base, term, names):
    p = nn.Parameter(torch.ones(2, 2))
    match = (
        f"prox of {names} uses the learning rate .* steps of {base.__name__} .* raise the weight"
    )
    with pytest.warns(UserWarning, match=match):
        PowerALMOptimizer(base([p]), ConstraintRegistry(), prox={p: term})


@pytest.mark.parametrize("base", [optim.SGD, optim.Adam, optim.Adamax])
def test_a_projection_does_not_warn(base):
    p = nn.Parameter(torch.ones(2, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        term = prox.SpectralNormBall(1.0)
        optimizer = PowerALMOptimizer(base([p]), ConstraintRegistry(), prox={p: term})
    p.sum().backward()
    optimizer.step()
    assert term.value(p.detach()) == 0
