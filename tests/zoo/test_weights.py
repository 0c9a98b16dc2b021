"""Constraints on weights against numpy's linear algebra."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from torch_powalm import ConstraintRegistry, PowerALMOptimizer, zoo

torch.manual_seed(0)
SQUARE = nn.Linear(6, 6).double()
WIDE = nn.Linear(7, 4).double()
TALL = nn.Linear(3, 5).double()


def numpy_of(layer):
    return layer.weight.detach().numpy()


def value(name, *weights, **settings):
    constraints = ConstraintRegistry()
    getattr(zoo, name)(constraints, "block", *weights, **settings)
    return {key: v.numpy() for key, v in constraints.values().items()}


@pytest.mark.parametrize("layer", [SQUARE, WIDE, TALL], ids=["square", "wide", "tall"])
def test_orthonormal_is_the_smaller_gram_matrix(layer):
    W = numpy_of(layer)
    G = W @ W.T if W.shape[0] <= W.shape[1] else W.T @ W
    expected = (G - np.eye(len(G)))[np.triu_indices(len(G))]
    assert value("orthonormal", layer)["block"] == pytest.approx(expected)


def test_rows_have_their_norms_also_in_convolutions():
    conv = nn.Conv2d(2, 3, 2).double()
    expected = (numpy_of(conv).reshape(3, -1) ** 2).sum(1) - 1
    assert value("unit_norm", conv)["block"] == pytest.approx(expected)


def test_symmetric_and_positive_definite():
    W = numpy_of(SQUARE)
    row, column = np.triu_indices(6, 1)
    assert value("symmetric", SQUARE)["block"] == pytest.approx((W - W.T)[row, column])
    found = value("positive_definite", lambda: SQUARE.weight, bound=0.1)["block"]
    assert found == pytest.approx(0.1 - np.linalg.eigvalsh((W + W.T) / 2))


def test_doubly_stochastic_has_sums_and_signs():
    W = numpy_of(SQUARE)
    found = value("doubly_stochastic", SQUARE)
    assert found["block"] == pytest.approx(np.concatenate([W.sum(1), W.sum(0)]) - 1)
    assert found["block_entries"] == pytest.approx(-W.ravel())


def test_spectral_norms_and_their_product_start_exact():
    norms = [np.linalg.norm(numpy_of(layer), 2) for layer in (WIDE, TALL)]
    assert value("spectral_norm", [WIDE, TALL], bound=1.0)["block"] == pytest.approx(
        np.array(norms) - 1
    )
    assert value("lipschitz", [WIDE, TALL], bound=1.0)["block"] == pytest.approx(
        [np.prod(norms) - 1]
    )


@pytest.mark.parametrize("rows", [4, 70])
def test_the_estimate_follows_changing_weights_without_an_svd(rows, monkeypatch):
    layer = torch.nn.Linear(rows + 3, rows, dtype=torch.float64)
    constraints = ConstraintRegistry()
    entry = zoo.spectral_norm(constraints, "norm", layer, bound=1.0)
    constraints.values()
    generator = torch.Generator().manual_seed(0)

    def no_svd(*arguments, **settings):
        raise AssertionError("an SVD was computed")

    with monkeypatch.context() as patch:
        patch.setattr(torch.linalg, "svd", no_svd)
        for _ in range(100):
            with torch.no_grad():
                noise = torch.randn(layer.weight.shape, generator=generator, dtype=torch.float64)
                layer.weight += 0.01 * noise
            estimate = constraints.values()["norm"]
            assert torch.equal(estimate, constraints.values()["norm"])  # asking changes nothing
    exact = np.linalg.norm(numpy_of(layer), 2) - 1
    assert entry.certified().item() == pytest.approx(exact)
    slack = 1e-12 if rows == 4 else 0.02  # small matrices are exact
    assert exact - slack < estimate.item() <= exact + 1e-12


@pytest.mark.parametrize("shape", [(5, 9), (9, 5)])
def test_small_matrices_have_the_gradient_of_the_svd_after_every_change(shape):
    layer = torch.nn.Linear(*shape, dtype=torch.float64)
    constraints = ConstraintRegistry()
    zoo.spectral_norm(constraints, "norm", layer, bound=1.0)
    constraints.values()
    with torch.no_grad():
        layer.weight.neg_().add_(1.0)  # far from the last singular vectors
    (ours,) = torch.autograd.grad(constraints.blocks["norm"].fn().sum(), layer.weight)
    u, _, vh = np.linalg.svd(numpy_of(layer))
    assert ours.numpy() == pytest.approx(np.outer(u[:, 0], vh[0]))


def test_the_gradient_of_a_spectral_norm_is_that_of_the_svd():
    layer = copy.deepcopy(WIDE)
    constraints = ConstraintRegistry()
    zoo.spectral_norm(constraints, "norm", layer, bound=1.0)
    (ours,) = torch.autograd.grad(constraints.blocks["norm"].fn().sum(), layer.weight)
    u, _, vh = np.linalg.svd(numpy_of(layer))
    assert ours.numpy() == pytest.approx(np.outer(u[:, 0], vh[0]))


def train(net, optimizer, steps):
    generator = torch.Generator().manual_seed(len(optimizer.history))
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(8, 6, generator=generator, dtype=torch.float64)
        (net(x) - 3 * x).square().mean().backward()
        optimizer.step()


def test_a_resumed_training_with_spectral_norms_has_the_same_bits():
    def build():
        net = copy.deepcopy(SQUARE)
        constraints = ConstraintRegistry()
        entry = zoo.lipschitz(constraints, "norm", net, bound=1.5)
        return (
            net,
            entry,
            PowerALMOptimizer(torch.optim.Adam(net.parameters(), lr=0.05), constraints, beta_1=1.0),
        )

    nets = []
    for stop in (False, True):
        net, entry, optimizer = build()
        train(net, optimizer, 10)
        if stop:
            saved = [part.state_dict() for part in (net, entry, optimizer)]
            saved = copy.deepcopy(saved)
            net, entry, optimizer = build()
            for part, state in zip((net, entry, optimizer), saved, strict=True):
                part.load_state_dict(state)
        train(net, optimizer, 10)
        nets.append(net.weight.detach())
    assert torch.equal(*nets)


def test_budgets_count_what_numpy_counts():
    total = np.abs(numpy_of(WIDE)).sum() + np.abs(numpy_of(TALL)).sum()
    assert value("l1_budget", [WIDE, TALL], bound=2.0)["block"] == pytest.approx([total - 2])
    gates = zoo.HardConcrete(200, open_share=0.7)
    alpha = gates.log_alpha
    with torch.no_grad():
        alpha += torch.randn(200, generator=torch.Generator().manual_seed(0))
    constraints = ConstraintRegistry()
    entry = zoo.l0_budget(constraints, "gates", gates, bound=50.0)
    a = alpha.detach().double().numpy()
    shift = 2 / 3 * np.log(0.1 / 1.1)
    expected = (1 / (1 + np.exp(shift - a))).sum() - 50
    assert constraints.values()["gates"].item() == pytest.approx(expected, rel=1e-5)
    open_gates = (gates.eval()() > 0).sum().item()
    assert entry.certified().item() == open_gates - 50


def test_gates_are_open_as_often_as_expected():
    generator = torch.Generator().manual_seed(0)
    gates = zoo.HardConcrete(20000, open_share=0.6, generator=generator)
    drawn = gates()
    assert (drawn > 0).float().mean().item() == pytest.approx(0.6, abs=0.02)
    assert gates.expected().item() == pytest.approx(0.6 * 20000, rel=1e-4)
    assert 0 <= drawn.min()
    assert drawn.max() <= 1
    drawn.sum().backward()
    assert gates.log_alpha.grad.abs().sum() > 0
