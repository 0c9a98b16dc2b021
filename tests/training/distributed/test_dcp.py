"""torch.distributed.checkpoint with a wrapped optimizer, on one process."""

import pytest
import torch
from torch import optim
from torch.distributed.checkpoint import load, save
from torch.distributed.checkpoint import state_dict as dcp

from tests.training.small_training import (
    HYBRID,
    Net,
    Signs,
    Twin,
    adam,
    assert_same,
    batches,
    measure,
    multipliers,
    train,
    train_twin,
    wrapped,
)
from torch_powalm.training.distributed.dcp import MultiplierState

# Distributed checkpoints


@pytest.mark.parametrize("make", [adam, lambda m: optim.SGD(m.parameters(), 0.02, momentum=0.9)])
def test_the_step_by_which_a_distributed_checkpoint_makes_state_is_neutral(make):
    ours, theirs = Net(), Net()
    optimizer, plain = wrapped(ours, make(ours)), make(theirs)
    made = dcp.get_optimizer_state_dict(ours, optimizer)
    expected = dcp.get_optimizer_state_dict(theirs, plain)
    for name, moments in expected["state"].items():
        for key, value in moments.items():
            assert torch.equal(torch.as_tensor(made["state"][name][key]), torch.as_tensor(value))
    assert_same(ours, Net())
    assert optimizer.epoch.steps == 0
    assert optimizer.param_groups[0]["lr"] == 0.02

    twin = Twin(HYBRID, 0.7)
    train(ours, optimizer)
    train_twin(theirs, plain, twin)
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)


def test_a_distributed_checkpoint_does_not_move_the_parameters_of_a_base_without_lr():
    model = Net()
    optimizer = wrapped(model, Signs(model.parameters()))
    dcp.get_optimizer_state_dict(model, optimizer)
    assert_same(model, Net())
    assert optimizer.epoch.steps == 0


@pytest.mark.parametrize("via", ["base", "wrapper"])
def test_a_distributed_checkpoint_restores_the_base_and_the_multipliers_go_beside_it(via):
    straight, saved, loaded = Net(), Net(), Net()
    optimizer = wrapped(straight)
    train(straight, optimizer, epochs=4)

    first = wrapped(saved)
    train(saved, first, epochs=2)
    state = dcp.get_optimizer_state_dict(saved, first.base if via == "base" else first)
    assert set(state) == {"state", "param_groups"}
    powalm = first.state_dict()["powalm"]

    second = wrapped(loaded)
    loaded.load_state_dict(saved.state_dict())
    if via == "base":
        dcp.set_optimizer_state_dict(loaded, second.base, state)
    else:
        with pytest.warns(UserWarning, match="state_dict has no multipliers"):
            dcp.set_optimizer_state_dict(loaded, second, state)
    second.load_state_dict({**second.base.state_dict(), "powalm": powalm})
    train(loaded, second, epochs=2)
    assert_same(loaded, straight)
    assert_same(multipliers(second), multipliers(optimizer))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.filterwarnings("ignore:torch.distributed is unavailable")  # torch 2.4
@pytest.mark.parametrize("in_the_epoch", [False, True])
def test_a_distributed_checkpoint_gives_a_fresh_optimizer_its_multipliers(in_the_epoch, tmp_path):
    model = Net()
    first = wrapped(model)
    train(model, first, epochs=2)
    if in_the_epoch:
        first.zero_grad()
        loss, values = measure(model, *batches()[0])
        first.augment(loss, **values).backward()
        first.step()
    save({"powalm": MultiplierState(first)}, checkpoint_id=tmp_path)
    second = wrapped(Net())
    assert second.powalm_state_dict()["y"] is None
    load({"powalm": MultiplierState(second)}, checkpoint_id=tmp_path)
    torch.testing.assert_close(
        second.powalm_state_dict(), first.powalm_state_dict(), rtol=0, atol=0
    )
    assert second.epoch.steps == int(in_the_epoch)


def test_the_state_of_multipliers_is_that_of_a_wrapped_optimizer():
    with pytest.raises(TypeError, match="optimizer must be a PowerALMOptimizer, got Adam"):
        MultiplierState(torch.optim.Adam(Net().parameters()))
