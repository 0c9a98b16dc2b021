"""Bases that evaluate a closure several times, and the handover from one base to another."""

import functools

import pytest
import torch
from torch import nn, optim

from torch_powalm import ConstraintRegistry, PowerALMOptimizer

F64 = torch.float64
SEARCH = pytest.mark.parametrize("search", [None, "strong_wolfe"])
UNITS = pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])


def least_squares(batch, unit=1.0):
    """min ‖x − c‖² s.t. Σx = 1, x_0 ≤ 0: c − 5/3, where the inequality is inactive."""
    x = nn.Parameter(torch.tensor([0.3, -0.2, 0.8], dtype=F64))
    c = torch.tensor([1.0, 2.0, 3.0], dtype=F64)
    constraints = ConstraintRegistry()
    if batch:
        constraints.equality("total", size=1)
        constraints.inequality("first", size=1)
    else:
        constraints.equality("total", lambda: unit * (x.sum() - 1))
        constraints.inequality("first", lambda: unit * x[:1])

    def closure(optimizer):
        optimizer.zero_grad()
        loss = (x - c).square().sum()
        if batch:
            loss = optimizer.augment(loss, total=unit * (x.sum() - 1), first=unit * x[:1])
        loss.backward()
        return loss

    return x, constraints, closure


SOLUTION = torch.tensor([-2 / 3, 1 / 3, 4 / 3], dtype=F64)


@SEARCH
@UNITS
@pytest.mark.parametrize("batch", [True, False], ids=["batch", "parameters"])
def test_lbfgs_with_nothing_set_becomes_feasible(batch, search, unit):
    x, constraints, closure = least_squares(batch, unit)
    base = optim.LBFGS([x], lr=1.0 if search else 0.2, line_search_fn=search)
    optimizer = PowerALMOptimizer(base, constraints)
    for _ in range(60):
        optimizer.step(lambda: closure(optimizer))
        optimizer.update_multipliers()
    found = constraints.values()
    assert abs(found["total"].item()) < 1e-3 * unit
    assert found["first"].item() < 1e-3 * unit
    torch.testing.assert_close(x.detach(), SOLUTION, rtol=0, atol=2e-3)


def test_lbfgs_learns_its_units_in_the_first_step_and_updates_after_every_one():
    x, constraints, closure = least_squares(True)
    optimizer = PowerALMOptimizer(optim.LBFGS([x], line_search_fn="strong_wolfe"), constraints)
    optimizer.step(lambda: closure(optimizer))
    assert len(optimizer.units.pull) == 1  # from the first of all evaluations
    assert not optimizer.units.measuring
    k = optimizer.dual.k
    optimizer.step(lambda: closure(optimizer))
    assert optimizer.dual.k == k + 1


@SEARCH
def test_a_batch_block_reports_the_accepted_point(search):
    x, constraints, closure = least_squares(True)
    base = optim.LBFGS([x], lr=1.0 if search else 0.2, max_iter=6, line_search_fn=search)
    optimizer = PowerALMOptimizer(base, constraints, beta_1=1.0)
    points = []

    def recorded():
        points.append(x.detach().clone())
        return closure(optimizer)

    optimizer.step(recorded)
    assert len(points) > 2
    accepted = [p for p in points if torch.equal(p, x)] if search else [points[-1]]
    value = constraints.values()["total"]
    torch.testing.assert_close(value, accepted[-1].sum()[None] - 1, rtol=1e-12, atol=1e-12)


class Restoring(optim.Optimizer):
    """Evaluates at a far point last, and goes back to the one before."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    def step(self, closure):
        (x,) = self.param_groups[0]["params"]
        for shift in (0.125, 5.0):
            with torch.no_grad():
                x.add_(shift)
            loss = closure()
        with torch.no_grad():
            x.sub_(5.0)
        return loss


def test_a_point_that_was_tried_and_rejected_is_not_reported():
    x, constraints, closure = least_squares(True)
    with torch.no_grad():
        x.copy_(torch.tensor([0.25, -0.5, 0.75]))  # sums with 5 and back are exact
    optimizer = PowerALMOptimizer(Restoring([x]), constraints, beta_1=1.0)
    optimizer.step(lambda: closure(optimizer))
    torch.testing.assert_close(constraints.values()["total"], x.detach().sum()[None] - 1)


# Handing over


@pytest.mark.parametrize("settings", [{}, {"beta_1": 1.0}], ids=["automatic", "given"])
def test_lbfgs_continues_what_adam_began(settings):
    x, constraints, closure = least_squares(False)
    adam = PowerALMOptimizer(optim.Adam([x], lr=0.05), constraints, **settings)
    for i in range(100):
        closure(adam)
        adam.step()
        if i % 20 == 19:
            adam.update_multipliers()
    before = {name: y.clone() for name, y in adam.multipliers().items()}
    k, beta, steps = adam.dual.k, adam.dual.beta, adam.epoch.total_steps
    optimizer = adam.with_base(optim.LBFGS([x], line_search_fn="strong_wolfe"))
    assert optimizer.multipliers() == before
    assert (optimizer.dual.k, optimizer.dual.beta, optimizer.epoch.total_steps) == (k, beta, steps)
    for _ in range(20):
        optimizer.step(lambda: closure(optimizer))
        optimizer.update_multipliers()
    torch.testing.assert_close(x.detach(), SOLUTION, rtol=0, atol=1e-4)
    assert optimizer.epoch.total_steps == steps + 20


def test_the_sums_of_the_epoch_are_kept():
    x, constraints, closure = least_squares(True)
    first = PowerALMOptimizer(optim.SGD([x], lr=0.01), constraints, beta_1=1.0)
    seen = []
    for optimizer in (first, first, None):
        optimizer = optimizer or first.with_base(optim.Adam([x], lr=0.01))
        seen.append(x.detach().sum() - 1)
        closure(optimizer)
        optimizer.step()
    assert optimizer.epoch.steps == 3
    torch.testing.assert_close(constraints.values()["total"], torch.stack(seen).mean()[None])


def test_the_old_optimizer_raises_by_name():
    x, constraints, closure = least_squares(False)
    old = PowerALMOptimizer(optim.SGD([x], lr=0.01), constraints)
    closure(old)
    old.step()
    new = old.with_base(optim.Adam([x]))
    closure(new)
    match = r"constraints total, first were handed over .* with_base"
    with pytest.raises(RuntimeError, match=match):
        old.step()
    with pytest.raises(RuntimeError, match=match):
        old.update_multipliers()
    new.step()
    assert new.epoch.total_steps == 2
    with pytest.raises(TypeError, match="base must not be wrapped already"):
        new.with_base(new)


def test_a_handover_while_units_are_measured_goes_on():
    x, constraints, closure = least_squares(True)
    optimizer = PowerALMOptimizer(optim.Adam([x], lr=0.01), constraints)
    for base in (None, optim.LBFGS([x], line_search_fn="strong_wolfe"), optim.Adam([x], lr=0.01)):
        optimizer = optimizer if base is None else optimizer.with_base(base)
        for _ in range(5):
            optimizer.step(functools.partial(closure, optimizer))
    assert optimizer.dual.started
    assert optimizer.units.steps == 1


def test_a_state_saved_by_one_base_loads_into_the_next():
    x, constraints, closure = least_squares(True)
    first = PowerALMOptimizer(optim.Adam([x], lr=0.01), constraints, beta_1=1.0)
    closure(first)
    first.step()
    first.update_multipliers()
    second = first.with_base(optim.SGD([x], lr=0.01))
    closure(second)
    second.step()
    z, again, _ = least_squares(True)
    other = PowerALMOptimizer(optim.SGD([z], lr=0.01), again, beta_1=1.0)
    other.load_state_dict(second.state_dict())
    assert other.multipliers() == second.multipliers()


@SEARCH
def test_a_search_that_is_interrupted_leaves_a_state_to_go_on_from(search):
    x, constraints, closure = least_squares(True)
    optimizer = PowerALMOptimizer(optim.LBFGS([x], line_search_fn=search), constraints)
    calls = [0]

    def interrupted():
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt
        return closure(optimizer)

    before = x.detach().clone()
    with pytest.raises(KeyboardInterrupt):
        optimizer.step(interrupted)
    assert torch.equal(x, before)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step(lambda: closure(optimizer))
    assert not torch.equal(x, before)
