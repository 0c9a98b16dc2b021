"""What torch expects of an optimizer: groups, gradients, shared state."""

import copy

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

from tests.training.small_training import (
    F64,
    HYBRID,
    Net,
    Twin,
    adam,
    assert_same,
    constrained,
    multipliers,
    plain_step,
    train,
    train_twin,
    wrapped,
    wrapped_static,
)
from tests.versions import needs_torch
from torch_powalm import ConstraintRegistry

# The wrapper is an optimizer


def test_the_wrapper_is_an_optimizer_that_shares_everything_with_its_base():
    model = Net()
    optimizer = wrapped(model)
    assert isinstance(optimizer, optim.Optimizer)
    for name in ("param_groups", "state", "defaults"):
        assert getattr(optimizer, name) is getattr(optimizer.base, name)
    optimizer.param_groups[0]["lr"] = 0.5
    assert optimizer.base.param_groups[0]["lr"] == 0.5


def test_groups_state_and_defaults_can_be_set_through_the_wrapper():
    optimizer = wrapped(Net())
    for name in ("param_groups", "state", "defaults"):
        value = copy.copy(getattr(optimizer, name))
        setattr(optimizer, name, value)
        assert getattr(optimizer.base, name) is value


def test_groups_and_state_stay_shared_after_a_load():
    model = Net()
    optimizer = wrapped_static(model)
    plain_step(model, optimizer)
    scheduler = lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert optimizer.param_groups is optimizer.base.param_groups
    assert optimizer.state is optimizer.base.state
    before = optimizer.state[model.first.weight]["step"].item()
    plain_step(model, optimizer)
    scheduler.step()
    assert optimizer.base.param_groups[0]["lr"] == pytest.approx(0.002)
    assert optimizer.base.state[model.first.weight]["step"].item() == before + 1


def test_public_names_of_the_base_show_through_and_private_ones_do_not():
    base = adam(Net())
    base.favorite, base._secret = "public", "private"
    optimizer = constrained(base, ConstraintRegistry())
    assert optimizer.favorite == "public"
    assert not hasattr(optimizer, "_secret")
    assert not hasattr(optimizer, "train")
    # GradScaler would hand its work to a fused base that does not see the constraints.
    fused = constrained(adam(Net(), fused=True), ConstraintRegistry())
    assert fused.base._step_supports_amp_scaling
    assert not getattr(fused, "_step_supports_amp_scaling", False)


def test_repr_shows_the_settings_the_blocks_and_the_base():
    text = repr(wrapped(Net(), nu=0.6, beta_1=2.5))
    for part in ("PowerALMOptimizer", "nu=0.6", "beta=2.5", "unit_rows", "class_loss", "lr: 0.02"):
        assert part in text


# Groups and gradients


def test_an_added_group_is_trained_and_constrained():
    ours, theirs = Net(), Net()
    base = optim.SGD([ours.second.weight], lr=0.05)
    optimizer = wrapped(ours, base)
    optimizer.add_param_group({"params": [ours.first.weight], "lr": 0.01})
    plain = optim.SGD([theirs.second.weight], lr=0.05)
    plain.add_param_group({"params": [theirs.first.weight], "lr": 0.01})
    assert len(optimizer.param_groups) == len(optimizer.base.param_groups) == 2
    twin = Twin(HYBRID, 0.7)
    train(ours, optimizer)
    train_twin(theirs, plain, twin)
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)


def test_a_group_added_between_steps_receives_the_constraint_gradient():
    p, q = (nn.Parameter(torch.ones(2, dtype=F64)) for _ in range(2))
    constraints = ConstraintRegistry()
    constraints.equality("sum", lambda: p + q)
    optimizer = constrained(optim.SGD([p], lr=0.1), constraints, nu=1.0)
    optimizer.step()
    assert q.grad is None
    optimizer.add_param_group({"params": [q]})
    optimizer.zero_grad()
    optimizer.step()
    assert_same(q.grad, p.grad)
    assert_same(q.detach(), 1 - 0.1 * (0.8 + 1) * torch.ones(2, dtype=F64))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_clears_as_the_base_does(set_to_none):
    model = Net()
    optimizer = wrapped_static(model)
    plain_step(model, optimizer)
    assert float(model.first.weight.grad.abs().max()) > 0
    optimizer.zero_grad(set_to_none=set_to_none)
    for p in model.parameters():
        assert p.grad is None if set_to_none else p.grad.count_nonzero() == 0


def test_gradients_that_are_not_cleared_accumulate_over_steps_as_in_torch():
    """Without zero_grad the old gradient stays; the constraint's part of it too."""
    p = nn.Parameter(torch.ones(1, dtype=F64))
    constraints = ConstraintRegistry()
    constraints.equality("zero", lambda: p)
    optimizer = constrained(optim.SGD([p], lr=0.5), constraints, nu=1.0)
    optimizer.step()
    optimizer.step()
    assert p.grad.item() == 1.5
    assert p.item() == -0.25


@needs_torch(2, 6)
def test_named_parameters_keep_their_names():
    model = Net()
    base = optim.Adam(model.named_parameters(), lr=0.02)
    optimizer = wrapped_static(model, base)
    plain_step(model, optimizer)
    names = [name for name, _ in model.named_parameters()]
    assert optimizer.param_groups[0]["param_names"] == names
    state = optimizer.state_dict()
    assert state["param_groups"][0]["param_names"] == names
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["param_names"] == names
