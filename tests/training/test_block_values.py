"""Values of blocks: by entry, on another model, at the latest step, and from autograd."""

import copy
import math

import pytest
import torch
from torch import nn, optim

from torch_powalm import ConstraintRegistry, PowerALMOptimizer, Violation
from torch_powalm.training.epoch_residual import epoch_residual

F64 = torch.float64


def pinn():
    """u'' = −π² sin(πx) on a grid, by a small network; u(0) = u(1) = 0 by construction."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1)).to(F64)
    x = torch.linspace(0, 1, 11, dtype=F64)[1:-1, None]

    def residual():
        points = x.clone().requires_grad_()
        u = points * (1 - points) * net(points)
        (du,) = torch.autograd.grad(u.sum(), points, create_graph=True)
        (ddu,) = torch.autograd.grad(du.sum(), points, create_graph=True)
        return (ddu + math.pi**2 * torch.sin(math.pi * points)).squeeze(1)

    constraints = ConstraintRegistry()
    constraints.equality("poisson", residual)
    return net, constraints, residual


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_residual_by_autograd_is_evaluated_where_gradients_are_off(mode):
    _, constraints, residual = pinn()
    with mode():
        found = constraints.violations()["poisson"]
        value = constraints.values()["poisson"]
    assert found.max == residual().abs().max().item()
    assert not value.requires_grad
    torch.testing.assert_close(value, residual().detach(), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:constraints 'poisson' oscillate")  # as the rate is constant
@pytest.mark.parametrize(
    "settings", [{"total_steps": 800}, {"beta_1": 1.0}], ids=["automatic", "given"]
)
def test_a_poisson_residual_as_a_block_of_the_parameters_trains(settings):
    net, constraints, _ = pinn()
    optimizer = PowerALMOptimizer(optim.Adam(net.parameters(), lr=5e-3), constraints, **settings)
    before = constraints.violations()["poisson"].norm
    for step in range(settings.get("total_steps", 600)):
        optimizer.zero_grad()
        loss = 1e-3 * sum(p.square().sum() for p in net.parameters())
        loss.backward()
        optimizer.step()
        if step % 40 == 39:
            optimizer.update_multipliers()
    optimizer.zero_grad()
    assert optimizer.residuals().primal_residual == pytest.approx(
        constraints.violations()["poisson"].norm
    )
    assert constraints.violations()["poisson"].norm < 0.05 * before


def test_a_hybrid_of_autograd_residual_and_batch_block_works_inside_augment():
    net, constraints, _ = pinn()
    constraints.equality("data", size=2)
    optimizer = PowerALMOptimizer(optim.SGD(net.parameters(), lr=1e-4), constraints)
    for _ in range(25):
        optimizer.zero_grad()
        data = net(torch.tensor([[0.25], [0.5]], dtype=F64)).squeeze(1) - 3.0
        optimizer.augment(data.square().mean(), data=data).backward()
        optimizer.step()
    assert optimizer.dual.started


# At the latest step


def deterministic(latest, **settings):
    p = nn.Parameter(torch.tensor([1.0, 4.0], dtype=F64))
    constraints = ConstraintRegistry()
    constraints.equality("boundary", size=2, latest=latest)
    return p, constraints, PowerALMOptimizer(optim.SGD([p], lr=0.1), constraints, **settings)


@pytest.mark.parametrize("settings", [{}, {"beta_1": 1.0}], ids=["automatic", "given"])
def test_a_block_of_the_latest_step_is_not_averaged(settings):
    p, constraints, optimizer = deterministic(True, updates=30, **settings)
    for _ in range(29):
        optimizer.zero_grad()
        seen = (p - 1).detach().clone()
        optimizer.augment(p.square().sum(), boundary=p - 1).backward()
        optimizer.step()
        torch.testing.assert_close(constraints.values()["boundary"], seen, rtol=0, atol=0)
    assert optimizer.estimate.tracks == {}
    r = epoch_residual(optimizer.blocks, optimizer.constraints, {})
    torch.testing.assert_close(r, seen, rtol=0, atol=0)


def test_without_latest_it_is_the_mean():
    p, constraints, optimizer = deterministic(False, beta_1=1.0)
    seen = []
    for _ in range(3):
        optimizer.zero_grad()
        seen.append((p - 1).detach().clone())
        optimizer.augment(p.square().sum(), boundary=p - 1).backward()
        optimizer.step()
    torch.testing.assert_close(constraints.values()["boundary"], torch.stack(seen).mean(0))


def test_latest_and_model_belong_to_one_kind_of_block_each():
    constraints = ConstraintRegistry()
    with pytest.raises(ValueError, match="size of 'a' must be given with latest, got None"):
        constraints.equality("a", lambda: torch.zeros(1), latest=True)
    with pytest.raises(ValueError, match="model and size of 'a' are mutually exclusive, got both"):
        constraints.equality("a", size=1, model=nn.Linear(1, 1))


# On another model


def test_an_averaged_model_can_be_judged():
    net = nn.Linear(3, 2)
    constraints = ConstraintRegistry()
    constraints.equality("rows", lambda net: net.weight.square().sum(1) - 1, model=net)

    @constraints.inequality("bias", model=net)
    def bias(net):
        return net.bias - 1

    constraints.inequality("batch", size=1)
    ema = copy.deepcopy(net)
    with torch.no_grad():
        ema.weight.fill_(1.0)
        ema.bias.fill_(3.0)
    assert constraints.violations(model=ema) == {
        "rows": Violation(2.0, pytest.approx(math.sqrt(8))),
        "bias": Violation(2.0, pytest.approx(math.sqrt(8))),
    }
    torch.testing.assert_close(constraints.values(model=ema)["rows"], torch.full((2,), 2.0))
    own = constraints.values()["rows"]
    torch.testing.assert_close(own, net.weight.detach().square().sum(1) - 1)


def test_functions_of_a_model_train_like_functions_without_arguments():
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    second.load_state_dict(first.state_dict())
    a, b = ConstraintRegistry(), ConstraintRegistry()
    a.equality("rows", lambda net: net.weight.square().sum(1) - 1, model=first)
    b.equality("rows", lambda: second.weight.square().sum(1) - 1)
    for net, constraints in ((first, a), (second, b)):
        optimizer = PowerALMOptimizer(optim.SGD(net.parameters(), lr=0.1), constraints, beta_1=1.0)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(1, 3)).sum().backward()
            optimizer.step()
    assert torch.equal(first.weight, second.weight)


def test_a_function_without_a_model_cannot_judge_another_one():
    constraints = ConstraintRegistry()
    constraints.equality("fixed", lambda: torch.zeros(1))
    with pytest.raises(ValueError, match="constraint 'fixed' must be registered with model="):
        constraints.violations(model=nn.Linear(1, 1))


# By entry


def classes(**settings):
    p = nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=F64))
    constraints = ConstraintRegistry()
    constraints.equality("sum_", lambda: p.sum() - 1)
    constraints.inequality("class_loss", size=3)
    base = optim.SGD([p], lr=0.1)
    return p, constraints, PowerALMOptimizer(base, constraints, **{"beta_1": 1.0, **settings})


def step(p, optimizer, *count):
    optimizer.zero_grad()
    counts = torch.tensor(count, dtype=F64)
    optimizer.augment(p.square().sum(), class_loss=(p, counts)).backward()
    optimizer.step()


def test_entries_that_were_never_seen_are_named():
    p, constraints, optimizer = classes()
    assert constraints.violations()["class_loss"].never_seen == (0, 1, 2)
    assert math.isnan(constraints.violations()["class_loss"].max)
    step(p, optimizer, 1, 0, 0)
    assert constraints.violations()["class_loss"].never_seen == (1, 2)
    torch.testing.assert_close(
        constraints.values()["class_loss"],
        torch.tensor([1.0, torch.nan, torch.nan], dtype=F64),
        equal_nan=True,
    )
    record = optimizer.update_multipliers()
    assert record.violations["class_loss"].never_seen == (1, 2)
    step(p, optimizer, 0, 0, 2)
    assert constraints.violations()["class_loss"].never_seen == (1,)  # 0 was seen before
    optimizer.update_multipliers(class_loss=torch.ones(3, dtype=F64))
    assert constraints.violations()["class_loss"] == Violation(1.0, pytest.approx(math.sqrt(3)))


def test_what_was_seen_is_saved():
    p, _, optimizer = classes()
    step(p, optimizer, 1, 0, 0)
    optimizer.update_multipliers()
    q, constraints, other = classes()
    other.load_state_dict(optimizer.state_dict())
    assert constraints.violations()["class_loss"].never_seen == (1, 2)
    step(q, other, 0, 1, 0)
    assert constraints.violations()["class_loss"].never_seen == (2,)


def test_observed_entries_that_were_not_seen_are_named():
    constraints = ConstraintRegistry()
    constraints.inequality("class_loss", size=2)
    constraints.observe(class_loss=(torch.ones(2), torch.tensor([0.0, 3.0])))
    assert constraints.take_observed() == {"class_loss": Violation(1.0, 1.0, (0,))}
