"""Shapes and physics against finite differences and closed forms."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from torch_powalm import ConstraintRegistry, zoo

X = torch.randn(30, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Known(nn.Module):
    """u(x) = a (x0² − x1 + sin(x2)); the parameter a is 1."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x):
        return (self.a * (x[:, 0] ** 2 - x[:, 1] + torch.sin(x[:, 2]))).unsqueeze(1)


def numbers(x):
    x = x.numpy()
    return x[:, 0] ** 2 - x[:, 1] + np.sin(x[:, 2])


def both(register):
    """Values at fixed points, and the root mean square at the same points as a batch."""
    constraints = ConstraintRegistry()
    model = Known()
    register(constraints, "fixed", model, X)
    entry = register(constraints, "sampled", model, None)
    sums = entry(X)
    assert sums.requires_grad
    found = constraints.blocks["sampled"].from_statistics(sums)
    return constraints.values(model=model)["fixed"].numpy(), found.item()


def rms(values):
    return np.sqrt((values**2).mean())


def test_monotone_bounds_derivatives():
    fixed, sampled = both(
        lambda c, n, m, p: zoo.monotone(c, n, m, increasing=[0], decreasing=[1, 2], points=p)
    )
    x = X.numpy()
    expected = np.stack([-2 * x[:, 0], -np.ones(30), np.cos(x[:, 2])], 1)
    assert fixed == pytest.approx(expected.ravel())
    assert sampled == pytest.approx(rms(np.maximum(expected, 0)))


@pytest.mark.parametrize("features", [None, [0]])
def test_convex_compares_the_middle_with_the_ends(features):
    fixed, sampled = both(lambda c, n, m, p: zoo.convex(c, n, m, features=features, points=p))
    other = torch.cat([X[1:], X[:1]])
    if features:
        other = torch.cat([other[:, :1], X[:, 1:]], 1)
    expected = numbers((X + other) / 2) - (numbers(X) + numbers(other)) / 2
    assert fixed == pytest.approx(expected)
    assert sampled == pytest.approx(rms(np.maximum(expected, 0)))
    if features:
        assert fixed.max() <= 1e-12  # x0² is convex


def test_bounded_has_two_sides():
    fixed, sampled = both(lambda c, n, m, p: zoo.bounded(c, n, m, low=0.0, high=1.0, points=p))
    expected = np.concatenate([-numbers(X), numbers(X) - 1])
    assert fixed == pytest.approx(expected)
    assert sampled == pytest.approx(rms(np.maximum(expected, 0)))


def test_symmetry_compares_outputs():
    fixed, sampled = both(lambda c, n, m, p: zoo.invariant(c, n, m, torch.neg, points=p))
    expected = numbers(-X) - numbers(X)
    assert fixed == pytest.approx(expected)
    assert sampled == pytest.approx(rms(expected))
    fixed, sampled = both(
        lambda c, n, m, p: zoo.equivariant(c, n, m, torch.neg, torch.neg, points=p)
    )
    assert fixed == pytest.approx(numbers(-X) + numbers(X))


def test_boundary_values_are_numbers_tensors_or_functions():
    for value in (2.0, torch.full((30,), 2.0), lambda x: torch.full((len(x), 1), 2.0)):
        constraints, model = ConstraintRegistry(), Known()
        zoo.boundary(constraints, "walls", model, value, points=X)
        assert constraints.values()["walls"].numpy() == pytest.approx(numbers(X) - 2)
    fixed, sampled = both(lambda c, n, m, p: zoo.initial(c, n, m, 2.0, points=p, bound=0.5))
    assert fixed == pytest.approx(np.abs(numbers(X) - 2) - 0.5)
    assert sampled == pytest.approx(rms(numbers(X) - 2) - 0.5)


def test_the_model_may_be_a_function_around_a_module():
    constraints, model = ConstraintRegistry(), Known()
    zoo.boundary(constraints, "walls", lambda x: 20 + 100 * model(x / 5), 20.0, points=X)
    zoo.bounded(constraints, "low", lambda x: 100 * model(x / 5), low=1.0, points=X)
    assert constraints.values()["walls"].numpy() == pytest.approx(100 * numbers(X / 5))
    assert constraints.values()["low"].numpy() == pytest.approx(1 - 100 * numbers(X / 5))


def test_the_normal_derivative_is_a_difference_quotient():
    normal = torch.tensor([0.6, 0.8, 0.0], dtype=torch.float64)
    fixed, sampled = both(lambda c, n, m, p: zoo.normal_derivative(c, n, m, normal, 1.0, points=p))
    step = 1e-5 * normal
    expected = (numbers(X + step) - numbers(X - step)) / 2e-5 - 1
    assert fixed == pytest.approx(expected, rel=1e-6)
    assert sampled == pytest.approx(rms(expected), rel=1e-6)


def test_conservation_compares_integrals_of_slices():
    slices = X.view(3, 10, 3)
    for weights in (None, torch.linspace(0, 1, 10, dtype=torch.float64)):
        constraints, model = ConstraintRegistry(), Known()
        zoo.conservation(constraints, "mass", model, slices, weights=weights)
        zoo.conservation(constraints, "known", model, slices, weights=weights, total=2.0)
        w = np.full(10, 0.1) if weights is None else weights.numpy()
        integral = numbers(X).reshape(3, 10) @ w
        assert constraints.values()["mass"].numpy() == pytest.approx(integral[1:] - integral[0])
        assert constraints.values()["known"].numpy() == pytest.approx(integral - 2)


def test_a_pde_residual_is_bounded_in_both_directions():
    def laplace(model, x):
        x = x.detach().requires_grad_()
        (first,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        parts = [
            torch.autograd.grad(first[:, i].sum(), x, create_graph=True, allow_unused=True)[0]
            for i in (0, 2)
        ]
        return parts[0][:, 0] + parts[1][:, 2]

    fixed, sampled = both(
        lambda c, n, m, p: zoo.pde_residual(c, n, m, laplace, points=p, bound=0.5)
    )
    expected = 2 - np.sin(X.numpy()[:, 2])
    assert fixed == pytest.approx(np.abs(expected) - 0.5)
    assert sampled == pytest.approx(rms(expected) - 0.5)


def test_a_residual_of_zero_has_a_finite_gradient():
    constraints, model = ConstraintRegistry(), Known()
    entry = zoo.bounded(constraints, "bounded", model, low=-1e3, high=1e3)
    value = constraints.blocks["bounded"].from_statistics(entry(X))
    value.sum().backward()
    assert value.item() == 0
    assert math.isfinite(model.a.grad.item())
