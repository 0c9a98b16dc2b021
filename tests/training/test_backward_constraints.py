"""backward_constraints(), steps without a loss, and gradients that are cleared."""

import math

import pytest
import torch
from torch import nn

from tests.training.small_training import (
    F64,
    Net,
    assert_same,
    batches,
    constrained,
    measure,
    multipliers,
    registry,
    small,
    two_nets,
)
from tests.training.test_augmented_gradient import BASES
from torch_powalm import ConstraintRegistry


def test_a_feasibility_problem_needs_no_loss():
    """The loss is a constant; the constraint alone has a gradient."""
    p, _, optimizer = small("rate", nu=1.0)
    start = p.detach().clone()
    loss = optimizer.augment(torch.zeros((), dtype=F64), rate=p - 1)
    loss.backward()
    assert_same(p.grad, start - 1)
    optimizer.step()
    assert optimizer.epoch.steps == 1


def test_a_block_may_be_the_parameter_itself():
    p = nn.Parameter(torch.tensor([1.0, -2.0], dtype=F64))
    constraints = ConstraintRegistry()
    constraints.equality("zero", lambda: p)
    optimizer = constrained(torch.optim.SGD([p], lr=0.25), constraints, nu=1.0)
    for _ in range(2):
        optimizer.zero_grad()
        optimizer.step()
    assert_same(p.detach(), 0.75**2 * torch.tensor([1.0, -2.0], dtype=F64))
    optimizer.update_multipliers()
    assert_same(multipliers(optimizer), p.detach())


def test_two_parameters_never_share_a_gradient():
    """Autograd may hand the same tensor to both summands."""
    p, q = (nn.Parameter(torch.ones(2, dtype=F64)) for _ in range(2))
    constraints = ConstraintRegistry()
    constraints.equality("sum", lambda: p + q)
    optimizer = constrained(torch.optim.SGD([p, q], lr=0.1), constraints)
    optimizer.backward_constraints()
    q_grad = q.grad.clone()
    p.grad.add_(1)
    assert_same(q.grad, q_grad)


def test_a_step_after_backward_constraints_does_not_add_them_again():
    model = Net()
    optimizer = constrained(
        torch.optim.SGD(model.parameters(), 0.1), registry(model, batch=False), nu=1.0
    )
    for _ in range(2):
        with torch.no_grad():
            expected = 2 * model.unit_rows()[:, None] * model.first.weight
        optimizer.zero_grad()
        optimizer.backward_constraints()
        assert_same(model.first.weight.grad, expected)
        optimizer.step()
        assert_same(model.first.weight.grad, expected)


def test_backward_constraints_adds_once_where_its_first_gradient_is_zero():
    p, q = (nn.Parameter(torch.tensor([value], dtype=F64)) for value in (0.0, 1.0))
    constraints = ConstraintRegistry()
    constraints.equality("sum", lambda: p.square() + q)
    optimizer = constrained(torch.optim.SGD([p, q], 0.1), constraints, nu=1.0)
    optimizer.backward_constraints()
    assert (p.grad.item(), q.grad.item()) == (0.0, 1.0)
    optimizer.step()
    assert q.grad.item() == 1.0


def test_the_total_gradient_may_be_replaced_before_the_step():
    """Not every clip works in place."""
    model = Net()
    optimizer = constrained(
        torch.optim.SGD(model.parameters(), 1.0), registry(model, batch=False), nu=0.7
    )
    start = model.first.weight.detach().clone()
    measure(model, *batches()[0])[0].backward()
    optimizer.backward_constraints()
    for p in model.parameters():
        p.grad = p.grad.clamp(-0.01, 0.01)
    optimizer.step()
    moved = (model.first.weight.detach() - start).abs().max()
    assert moved.item() == pytest.approx(0.01, rel=1e-10)


def test_clearing_gradients_after_backward_constraints_makes_the_next_step_add_them():
    model = Net()
    optimizer = constrained(
        torch.optim.SGD(model.parameters(), 0.1), registry(model, batch=False), nu=1.0
    )
    optimizer.backward_constraints()
    expected = model.first.weight.grad
    optimizer.zero_grad()
    optimizer.step()
    assert_same(model.first.weight.grad, expected)


def test_a_step_without_gradient_mode_is_the_same_step():
    model, other = two_nets()
    for net, enabled in ((model, False), (other, True)):
        optimizer = constrained(BASES["adam"](net.parameters()), registry(net), nu=0.7)
        loss, values = measure(net, *batches()[0])
        optimizer.augment(loss, **values).backward()
        with torch.set_grad_enabled(enabled):
            optimizer.step()
    assert_same(model, other)


@pytest.mark.parametrize("clear", ["optimizer", "model"])
def test_clearing_the_gradients_of_a_skipped_batch_clears_the_batch(clear):
    """The scaler skips the first batch, so the epoch is the second one."""
    p, _, optimizer = small("rate", nu=1.0)
    cleared = {"optimizer": optimizer, "model": nn.ParameterList([p])}[clear]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for factor, shift in ((math.inf, 100.0), (1.0, -1.0)):
        cleared.zero_grad()
        loss = optimizer.augment(p.sum(), rate=p + shift)
        scaler.scale(factor * loss).backward()
        scaler.step(optimizer)
        scaler.update()
    optimizer.update_multipliers()
    assert multipliers(optimizer).tolist() == [0.0, 1.0, 2.0]
