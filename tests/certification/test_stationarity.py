"""stationarity: zero at a constrained optimum, and what autograd says elsewhere."""

import math

import pytest
import torch
from torch import nn

from torch_powalm import ConstraintRegistry, PowerALMOptimizer, stationarity

DATA = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 6.0])]


def problem(steps=0, **settings):
    """Minimize mean (w − d)² over data, subject to a ratio of sums, a mean and a sum of w."""
    model = nn.Linear(1, 2, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.5], [0.7]]))
    constraints = ConstraintRegistry()
    constraints.inequality("ratio", size=1, from_statistics=lambda s: s[:1] / s[1:] - 1.0)
    constraints.equality("first", lambda: model.weight[0] - 0.5)
    base = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = PowerALMOptimizer(base, constraints, nu=1.0, beta_1=2.0, updates=40, **settings)

    def evaluate(batch):
        w, d = model.weight.squeeze(1), batch.double()
        return (w - d).square().mean(), {"ratio": torch.stack([(w[1] * d).sum(), d.sum()])}

    for _ in range(steps):
        optimizer.zero_grad()
        found = [evaluate(batch) for batch in DATA]
        sums = sum(values["ratio"] for _, values in found)
        optimizer.augment(sum(loss for loss, _ in found) / 2, ratio=sums).backward()
        optimizer.step()
    return model, optimizer, evaluate


def test_all_residuals_vanish_at_the_end_of_a_training_of_known_solution():
    model, optimizer, evaluate = problem(600, margin={"ratio": 0.25})
    found = stationarity(optimizer, evaluate, DATA)
    assert model.weight.flatten().tolist() == pytest.approx([0.5, 0.75], abs=0.02)
    assert found["gradient"] < 0.1 * found["loss_gradient"]
    assert found["violation"] < 0.02
    assert found["complementarity"] < 0.1


def test_the_gradient_is_that_of_the_lagrangian_of_all_data():
    model, optimizer, evaluate = problem(100)
    found = stationarity(optimizer, evaluate, DATA)
    y, w = optimizer.multipliers(), model.weight
    loss = sum(evaluate(batch)[0] for batch in DATA) / 2
    sums = sum(evaluate(batch)[1]["ratio"] for batch in DATA)
    ratio, first = (sums[:1] / sums[1:] - 1.0), w[0] - 0.5
    total = loss + (y["ratio"] * ratio).sum() + (y["first"] * first).sum()
    (expected,) = torch.autograd.grad(total, w, retain_graph=True)
    assert found["gradient"] == pytest.approx(float(expected.norm()), rel=1e-10)
    (plain,) = torch.autograd.grad(loss, w)
    assert found["loss_gradient"] == pytest.approx(float(plain.norm()), rel=1e-10)
    primal = math.hypot(max(ratio.item(), 0.0), first.item())
    assert found["violation"] == pytest.approx(primal, rel=1e-10)
    assert found["complementarity"] == pytest.approx(abs((y["ratio"] * ratio).item()), rel=1e-10)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"optimizer": None}, TypeError, "optimizer must be a PowerALMOptimizer, got NoneType"),
        ({"evaluate": 1}, TypeError, "evaluate must be a function of a batch, got int"),
        ({"loader": iter(DATA)}, TypeError, "loader must be iterable more than once, got"),
        ({"loader": []}, ValueError, "loader must have at least one batch, got none"),
        (
            {"evaluate": lambda batch: (torch.zeros(()), {})},
            KeyError,
            "evaluate must return a value for 'ratio', got none",
        ),
    ],
)
def test_arguments_are_checked(changes, error, message):
    _, optimizer, evaluate = problem(1)
    arguments = {"optimizer": optimizer, "evaluate": evaluate, "loader": DATA, **changes}
    with pytest.raises(error, match=message):
        stationarity(**arguments)
