"""Models that are more than a stack of layers: compiled, tied, sparse, frozen."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn.utils.parametrizations import weight_norm

from tests.training.small_training import (
    F64,
    HYBRID,
    Net,
    Twin,
    adam,
    assert_same,
    batches,
    constrained,
    measure,
    multipliers,
    train_twin,
    wrapped,
)
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

# torch.compile


def test_a_compiled_model_trains_as_the_full_lagrangian():
    ours, theirs = Net(), Net()
    optimizer = wrapped(ours)
    compiled = torch.compile(ours, backend="aot_eager")
    for _ in range(2):
        for x, target in batches():
            optimizer.zero_grad()
            loss, values = measure(compiled, x, target)
            optimizer.augment(loss, **values).backward()
            optimizer.step()
        optimizer.update_multipliers()
    twin = Twin(HYBRID, 0.7)
    train_twin(theirs, adam(theirs), twin, epochs=2)
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)


# Models


def compare(
    make: Callable[[], nn.Module],
    blocks: Callable[[Any], dict[str, Callable[[], Tensor]]],
    loss: Callable[[Any], Tensor],
    *,
    base: Callable[[nn.Module], optim.Optimizer] = adam,
    nu: float = 0.7,
) -> tuple[Any, PowerALMOptimizer]:
    """Train equalities of parameters only, and compare with the full Lagrangian."""
    ours, theirs = make(), make()
    constraints = ConstraintRegistry()
    for name, fn in blocks(ours).items():
        constraints.equality(name, fn)
    optimizer = constrained(base(ours), constraints, nu=nu)
    plain = base(theirs)

    def r() -> Tensor:
        return torch.cat([fn().reshape(-1) for fn in blocks(theirs).values()])

    twin = Twin([False] * len(r()), nu)
    for _ in range(3):
        for _ in range(3):
            optimizer.zero_grad()
            loss(ours).backward()
            optimizer.step()
            plain.zero_grad()
            (loss(theirs) + twin.value(r())).backward()
            plain.step()
        optimizer.update_multipliers()
        twin.update(r())
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)
    assert float(twin.y.norm()) > 0.1
    return ours, optimizer


def logits_loss(model: nn.Module) -> Tensor:
    x, target = batches()[0]
    return nn.functional.cross_entropy(model(x), target)


def test_a_weight_norm_parametrization_is_constrained_through_its_originals():
    def make():
        model = Net()
        weight_norm(model.first)
        return model

    model, _ = compare(make, lambda m: {"unit_rows": m.unit_rows}, logits_loss)
    assert len(list(model.parameters())) == 3


class Tied(nn.Module):
    """Encoder and decoder share one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 3, bias=False, dtype=F64)
        self.decoder = nn.Linear(4, 3, bias=False, dtype=F64)
        self.decoder.weight = self.encoder.weight
        with torch.no_grad():
            self.encoder.weight.copy_(torch.linspace(-0.7, 0.9, 12, dtype=F64).reshape(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.encoder(x)) @ self.decoder.weight


def test_tied_weights_receive_the_gradient_of_every_use():
    def blocks(model):
        return {
            "encoder": lambda: model.encoder.weight.square().sum(1) - 1,
            "decoder": lambda: model.decoder.weight.sum() - 0.5,
        }

    x = batches()[0][0]
    model, optimizer = compare(Tied, blocks, lambda m: (m(x) - x).square().mean())
    assert len(optimizer.params) == 1
    assert model.encoder.weight is model.decoder.weight


class Words(nn.Module):
    """An embedding and a linear layer."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 3, sparse=sparse, dtype=F64)
        self.out = nn.Linear(3, 1, bias=False, dtype=F64)
        with torch.no_grad():
            self.embedding.weight.copy_(torch.linspace(-1, 1, 18, dtype=F64).reshape(6, 3))
            self.out.weight.copy_(torch.tensor([[0.5, -0.3, 0.8]]))

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.embedding(words))


@pytest.mark.parametrize("which", ["embedding", "out"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_sparse_embedding_trains_as_a_dense_one(which, set_to_none):
    models = [Words(sparse=sparse) for sparse in (True, False)]
    words = torch.tensor([0, 2, 2, 5])
    optimizers = []
    for model in models:
        constraints = ConstraintRegistry()
        constraints.equality("unit", lambda m=model: getattr(m, which).weight.square().sum(1) - 1)
        base = optim.SGD(model.parameters(), lr=0.05)
        optimizers.append(constrained(base, constraints, nu=0.7))
    for _ in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad(set_to_none)
            model(words).square().mean().backward()
            if set_to_none:
                assert model.embedding.weight.grad.is_sparse == (model is models[0])
            optimizer.step()
            optimizer.update_multipliers()
    assert_same(*models)
    assert_same(*(multipliers(optimizer) for optimizer in optimizers))
    if which == "out" and set_to_none:
        assert models[0].embedding.weight.grad.is_sparse  # nothing made it dense


def test_frozen_parameters_stay_and_the_constraint_moves_the_others():
    def make():
        model = Net()
        model.first.weight.requires_grad_(False)
        return model

    def blocks(model):
        return {"product": lambda: (model.second.weight @ model.first.weight).sum(1) - 1}

    everything = lambda model: optim.Adam(model.parameters(), lr=0.02)  # noqa: E731
    model, _ = compare(make, blocks, logits_loss, base=everything)
    assert torch.equal(model.first.weight, Net().first.weight)
    assert model.first.weight.grad is None


def test_a_parameter_thawed_later_is_constrained_from_then_on():
    model = Net()
    model.first.weight.requires_grad_(False)
    constraints = ConstraintRegistry()
    constraints.equality("product", lambda: (model.second.weight @ model.first.weight).sum(1) - 1)
    optimizer = constrained(optim.SGD(model.parameters(), lr=0.1), constraints)
    optimizer.step()
    model.first.weight.requires_grad_(True)
    optimizer.zero_grad()
    optimizer.step()
    assert float(model.first.weight.grad.norm()) > 0.1


class Slack(nn.Module):
    """The slack is in no loss: only the constraint gives it a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.slack = nn.Parameter(torch.tensor([0.5, 0.1, 0.3], dtype=F64))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def test_a_parameter_of_the_constraint_alone_is_trained():
    def blocks(model):
        return {"bound": lambda: model.net.second.weight.square().sum(1) + model.slack.square() - 1}

    model, _ = compare(Slack, blocks, logits_loss)
    assert not torch.equal(model.slack, Slack().slack)
