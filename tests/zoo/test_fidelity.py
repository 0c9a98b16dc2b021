"""Distances to a reference model against formulas written in numpy."""

import pytest

pytest.importorskip("scipy")
from types import SimpleNamespace

import numpy as np
import torch
from scipy.special import softmax
from torch import nn

from torch_powalm import ConstraintRegistry, zoo

torch.manual_seed(0)
REFERENCE = zoo.frozen_copy(nn.Linear(5, 4).double())
MODEL = nn.Linear(5, 4).double()
X = torch.randn(12, 5, dtype=torch.float64)


def predictions(x=X):
    z, r = (net(x).detach().numpy() for net in (MODEL, REFERENCE))
    return softmax(z, -1), softmax(r, -1)


@pytest.mark.parametrize("name", ["target_kl", "forgetting"])
def test_divergences_are_those_of_the_formula(name):
    p, q = predictions()
    if name == "forgetting":
        p, q = q, p
    expected = (p * np.log(p / q)).sum(1)
    constraints = ConstraintRegistry()
    entry = getattr(zoo, name)(constraints, "kl", REFERENCE, bound=0.1)
    value, count = entry(MODEL(X), X)
    assert value.item() == pytest.approx(expected.mean() - 0.1)
    assert count.item() == 12
    mask = torch.arange(12) % 3 > 0
    value, count = entry(MODEL(X), X, mask=mask)
    assert value.item() == pytest.approx(expected[mask.numpy()].mean() - 0.1)
    assert count.item() == 8
    value.backward()
    assert all(p.grad is None for p in REFERENCE.parameters())


def test_a_model_that_returns_logits_by_name_is_a_reference():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = REFERENCE

        def forward(self, inputs):
            return SimpleNamespace(logits=self.inner(inputs))

    entries = [
        zoo.target_kl(ConstraintRegistry(), "kl", reference, bound=0.1)
        for reference in (REFERENCE, Named().eval())
    ]
    plain, named = entries[0](MODEL(X), X), entries[1](MODEL(X), inputs=X)
    assert torch.equal(plain[0], named[0])


def test_distances_are_relative_and_sum_over_parts():
    constraints = ConstraintRegistry()
    outputs = zoo.output_distance(constraints, "outputs", REFERENCE, bound=0.1)
    features = zoo.feature_distance(constraints, "features", bound=0.1)
    read = constraints.blocks["outputs"].from_statistics
    z, r = (net(X).detach().numpy() for net in (MODEL, REFERENCE))
    expected = np.linalg.norm(z - r) / np.linalg.norm(r) - 0.1
    assert read(outputs(MODEL(X), X)).item() == pytest.approx(expected)
    parts = outputs(MODEL(X[:5]), X[:5]) + outputs(MODEL(X[5:]), X[5:])
    assert read(parts).item() == pytest.approx(expected)
    assert torch.equal(features(MODEL(X), REFERENCE(X)), outputs(MODEL(X), X))


def test_no_distance_has_a_finite_gradient():
    model = nn.Linear(5, 4).double()
    model.load_state_dict(REFERENCE.state_dict())
    constraints = ConstraintRegistry()
    entry = zoo.output_distance(constraints, "outputs", REFERENCE, bound=0.1)
    constraints.blocks["outputs"].from_statistics(entry(model(X), X)).sum().backward()
    assert torch.equal(model.weight.grad, torch.zeros(4, 5).double())


def test_a_frozen_copy_is_apart_from_the_model():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    copied = zoo.frozen_copy(model)
    assert model.training
    assert not copied.training
    assert not any(p.requires_grad for p in copied.parameters())
    assert copied[0].weight.data_ptr() != model[0].weight.data_ptr()
