"""Deep copies and pickles of a wrapped optimizer."""

import copy
import pickle

import pytest
import torch
from torch.optim import lr_scheduler

from tests.training.small_training import (
    Net,
    adam,
    batches,
    constrained,
    measure,
    multipliers,
    plain_step,
    train,
    wrapped,
)
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

# Copies

COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda objects: pickle.loads(pickle.dumps(objects)),
}


def prepared(when: str) -> tuple[Net, PowerALMOptimizer]:
    model = Net()
    optimizer = wrapped(model)
    if when != "fresh":
        train(model, optimizer, epochs=2)
    if when == "with a scheduler":
        lr_scheduler.StepLR(optimizer, step_size=1)
    return model, optimizer


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("when", ["fresh", "trained", "with a scheduler"])
def test_a_copy_trains_as_the_original_would_and_leaves_it_alone(when, copied):
    model, optimizer = prepared(when)
    other = prepared(when)[1]
    model_2, optimizer_2 = copied((model, optimizer))
    start = [p.detach().clone() for p in model.parameters()]
    assert optimizer_2.base is not optimizer.base
    assert {id(p) for p in optimizer_2.params} == {id(p) for p in model_2.parameters()}

    train(model_2, optimizer_2)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), start, strict=True))
    train(model, optimizer)
    for p, q in zip(model.parameters(), model_2.parameters(), strict=True):
        assert torch.equal(p, q)
    assert torch.equal(multipliers(optimizer), multipliers(optimizer_2))

    # D1 of INTEGRATION.md: one copied instance broke the step of every other.
    plain = Net()
    fresh = wrapped(plain)
    train(plain, fresh, epochs=1)
    assert fresh.dual.k == 2
    assert other.dual.k == optimizer.dual.k - 3


def test_a_copied_optimizer_takes_a_scheduler_and_hooks_of_its_own():
    model, optimizer = prepared("with a scheduler")
    optimizer.register_step_pre_hook(lambda *_: pytest.fail("a hook of the original"))
    model_2, optimizer_2 = copy.deepcopy((model, optimizer))
    scheduler = lr_scheduler.StepLR(optimizer_2, step_size=1, gamma=0.1)
    seen = []
    optimizer_2.register_step_post_hook(lambda *_: seen.append("step"))
    train(model_2, optimizer_2, epochs=1)
    scheduler.step()
    assert seen == ["step"] * 3
    assert optimizer_2.param_groups[0]["lr"] == pytest.approx(0.002)
    assert optimizer.param_groups[0]["lr"] == 0.02


def test_an_optimizer_copied_alone_takes_the_model_of_its_bound_methods_along():
    model, optimizer = prepared("trained")
    twin = copy.deepcopy(optimizer)
    owner = twin.constraints.blocks["unit_rows"].fn.__self__
    assert owner is not model
    assert {id(p) for p in twin.params} == {id(p) for p in owner.parameters()}
    train(owner, twin, epochs=1)
    train(model, optimizer, epochs=1)
    for p, q in zip(model.parameters(), owner.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("together", [True, False], ids=["with its model", "alone"])
def test_a_copy_whose_constraint_is_a_lambda_on_the_old_model_raises(steps, together):
    """Otherwise the copy would train without its constraint, silently."""
    model = Net()
    constraints = ConstraintRegistry()
    constraints.equality("unit_rows", lambda: model.unit_rows())
    optimizer = constrained(adam(model), constraints)
    for _ in range(steps):
        plain_step(model, optimizer)
    model_2, optimizer_2 = (
        copy.deepcopy((model, optimizer)) if together else (model, copy.deepcopy(optimizer))
    )
    if together:
        measure(model_2, *batches()[0])[0].backward()
    with pytest.raises(ValueError, match="constraint 'unit_rows' must depend on a parameter"):
        optimizer_2.step()
    plain_step(model, optimizer)  # the original still can
