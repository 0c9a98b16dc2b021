"""Under torch.compile(fullgraph=True), a step of steady training is a graph without a break."""

import pytest
import torch
from torch import nn, optim

from torch_powalm import ConstraintRegistry, PowerALMOptimizer

STEPS = 32
pytestmark = pytest.mark.skipif(
    not hasattr(torch._dynamo.config, "trace_autograd_ops"), reason="needs a newer torch"
)


@pytest.fixture(autouse=True)
def _trace_backward():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        yield
    torch._dynamo.reset()


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def parts(in_place=False):
    """A model, its optimizer, and the part of a step that fills .grad."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    params = list(model.parameters())
    constraints = ConstraintRegistry()
    constraints.equality("rows", lambda: model[0].weight.square().sum(1) - 1)
    constraints.inequality("mean", size=1)
    base = optim.SGD(params, lr=torch.tensor(0.01), momentum=0.9)
    optimizer = PowerALMOptimizer(
        base,
        constraints,
        beta_1=1.0,
        omega=1.5,
        updates=5,
        check_finite="at_update",
        on_nonfinite="skip",
    )

    def backward(x):
        out = model(x)
        loss = optimizer.augment(out.square().mean(), mean=out.mean().reshape(1) - 0.1)
        if in_place:
            for p, grad in zip(params, torch.autograd.grad(loss, params), strict=True):
                p.grad.copy_(grad)
        else:
            loss.backward()

    return model, optimizer, backward


def train(compiles, in_place=False):
    """Train with compiled parts of a step; return the model and the graphs after each step."""
    model, optimizer, backward = parts(in_place)

    def whole(x):
        backward(x)
        optimizer.step()

    if in_place:
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
    options = {"fullgraph": True, "backend": "eager"}
    traced = (torch.compile(f, **options) for f in (backward, optimizer.step, whole))
    fast_backward, fast_step, fast_whole = traced
    generator, found = torch.Generator().manual_seed(1), []
    for i in range(STEPS):
        x = torch.randn(6, 3, generator=generator)
        if i == 13:
            x[0] = torch.nan
        optimizer.zero_grad(set_to_none=not in_place)
        fast = compiles and optimizer.is_steady
        if in_place:
            (fast_whole if fast else whole)(x)
        else:
            (fast_backward if fast else backward)(x)
            (fast_step if fast else optimizer.step)()
        if i % 5 == 0:
            optimizer.param_groups[0]["lr"].mul_(0.9)
        found.append(graphs())
    return model, optimizer, found


@pytest.mark.parametrize(
    "in_place", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["two parts", "whole"]
)
@pytest.mark.filterwarnings("ignore")
def test_a_step_is_one_graph_and_is_traced_again_neither_for_beta_nor_y_nor_lr(in_place):
    (plain, one, _), (model, other, found) = train(False, in_place), train(True, in_place)
    for p, q in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)
    assert found[12] == found[-1] <= (4 if not in_place else 3), found
    assert not torch._dynamo.utils.counters["graph_break"]
    assert one.dual.k == other.dual.k == 7
    torch.testing.assert_close(one.dual.y, other.dual.y)
    assert one.epoch.skipped == other.epoch.skipped == 1


@pytest.mark.filterwarnings("ignore")
def test_a_step_with_a_constraint_for_each_sample_is_one_graph():
    trained, counts = [], []
    for compiles in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        constraints, x = ConstraintRegistry(), torch.randn(24, 3)
        constraints.inequality("sample", size=24, indexed=True)
        base = optim.SGD(model.parameters(), lr=torch.tensor(1e-3))
        settings = {"beta_1": 0.1, "omega": 1.5, "updates": 5, "nu": 0.6}
        optimizer = PowerALMOptimizer(base, constraints, check_finite="at_update", **settings)

        def step(index, model=model, optimizer=optimizer, x=x):
            error = (model(x[index]) - 1).square().sum(1)
            loss = optimizer.augment(error.mean(), sample=(error - 0.3, index))
            params = list(model.parameters())
            for p, grad in zip(params, torch.autograd.grad(loss, params), strict=True):
                p.grad.copy_(grad)
            optimizer.step()

        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        fast = torch.compile(step, fullgraph=True, backend="eager")
        for i in range(24):
            index = torch.randperm(24, generator=torch.Generator().manual_seed(i))[:6]
            optimizer.zero_grad(set_to_none=False)
            (fast if compiles and optimizer.is_steady else step)(index)
            counts.append(graphs())
        trained.append((model.weight, optimizer.multipliers()["sample"]))
    torch.testing.assert_close(*trained, rtol=1e-4, atol=1e-6)
    assert float(trained[0][1].max()) > 0
    assert counts[-12] == counts[-1] <= 4, counts
