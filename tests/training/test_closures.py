"""Steps with a closure."""

import pytest
import torch
from torch import nn, optim

from tests.training.small_training import (
    STATIC,
    Net,
    Twin,
    assert_same,
    batches,
    constrained,
    measure,
    multipliers,
    plain_step,
    registry,
    static,
    wrapped_static,
)

# Closures


def test_a_closure_runs_once_and_its_own_value_is_returned():
    model, calls = Net(), []
    optimizer = wrapped_static(model)

    def closure():
        optimizer.zero_grad()
        loss = measure(model, *batches()[0])[0]
        loss.backward()
        calls.append(loss.item())
        return loss

    assert optimizer.step(closure).item() == calls[0]
    assert optimizer.step(closure=closure).item() == calls[1]
    assert len(calls) == 2
    assert optimizer.epoch.steps == 2


def test_a_closure_without_a_value_makes_the_same_step():
    model, other = Net(), Net()
    optimizer = wrapped_static(model)
    assert optimizer.step(lambda: measure(model, *batches()[0])[0].backward()) is None
    plain_step(other, wrapped_static(other))
    assert_same(model, other)


def test_a_closure_may_add_the_constraints_itself_to_clip_the_total():
    model, other = Net(), Net()
    optimizer, reference = wrapped_static(model), wrapped_static(other)

    def clip(net, opt):
        opt.backward_constraints()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)

    def closure():
        optimizer.zero_grad()
        measure(model, *batches()[0])[0].backward()
        clip(model, optimizer)

    for _ in range(2):
        optimizer.step(closure)
        reference.zero_grad()
        measure(other, *batches()[0])[0].backward()
        clip(other, reference)
        reference.step()
    assert_same(model, other)


@pytest.mark.parametrize("nu", [0.3, 0.7, 1.0])
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_equals_lbfgs_on_the_full_lagrangian(search, nu):
    """A first step of 0.5: from 0.1 the search makes 1e-9 of a last bit in the plain loop too."""

    def lbfgs(model):
        lr = 0.5 if search else 0.1
        return optim.LBFGS(model.parameters(), lr=lr, max_iter=4, line_search_fn=search)

    ours, theirs = Net(), Net()
    optimizer = constrained(lbfgs(ours), registry(ours, batch=False), nu=nu)
    plain, twin = lbfgs(theirs), Twin(STATIC, nu)

    def closure():
        optimizer.zero_grad()
        loss = measure(ours, *batches()[0])[0]
        loss.backward()
        return loss

    def full_closure():
        plain.zero_grad()
        loss = measure(theirs, *batches()[0])[0] + twin.value(static(theirs))
        loss.backward()
        return loss

    for _ in range(3):
        loss = optimizer.step(closure)
        with torch.no_grad():
            assert loss.item() == pytest.approx(measure(theirs, *batches()[0])[0].item())
        plain.step(full_closure)
        optimizer.update_multipliers()
        twin.update(static(theirs))
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)
