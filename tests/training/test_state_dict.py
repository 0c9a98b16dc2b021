"""Saving and loading a wrapped optimizer."""

import copy
import io
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from tests.training.small_training import Net, adam, batches, measure, multipliers, train, wrapped

# State


def saved_and_loaded(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class Run:
    """A training with a scheduler and a scaler that can be stopped after any batch."""

    def __init__(self, **settings: Any) -> None:
        self.model = Net()
        self.optimizer = wrapped(self.model, omega=1.3, **settings)
        self.scheduler = lr_scheduler.ExponentialLR(self.optimizer, gamma=0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        self.done = 0

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss, values = measure(self.model, *batches()[self.done % 3])
            self.scaler.scale(self.optimizer.augment(loss, **values)).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.done += 1
            if self.done % 3 == 0:
                self.optimizer.update_multipliers()
                self.scheduler.step()

    def parts(self) -> dict[str, Any]:
        names = ("model", "optimizer", "scheduler", "scaler")
        return {name: getattr(self, name) for name in names}

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self.parts().items():
            part.load_state_dict(state[name])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sigma": "paper", "sufficient_decrease": 0.9},
        {"coupling": "block", "beta_max": 1.5, "y_max": 2.0},
    ],
    ids=["penalty", "paper", "block"],
)
@pytest.mark.parametrize("stop", [0, 1, 3, 7])
def test_a_saved_and_resumed_run_is_the_same_to_the_last_bit(stop, settings):
    """Stopped before the first step, within an epoch, and at the end of one."""
    straight, first, second = Run(**settings), Run(**settings), Run(**settings)
    straight.advance(12)
    first.advance(stop)
    second.load_state_dict(saved_and_loaded(first.state_dict()))
    second.done = stop
    second.advance(12 - stop)
    for p, q in zip(straight.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(p, q)
    assert torch.equal(multipliers(straight.optimizer), multipliers(second.optimizer))
    ours, theirs = straight.optimizer.state_dict(), second.optimizer.state_dict()
    for name in ("beta", "k", "start_norm", "last_norm", "steps", "skipped", "gradient_norm"):
        assert ours["powalm"][name] == theirs["powalm"][name], name


def test_a_state_dict_does_not_change_while_training_goes_on():
    run = Run()
    run.advance(4)
    state = run.optimizer.state_dict()["powalm"]
    before = copy.deepcopy(state)
    run.advance(5)
    assert all(torch.equal(state["y"][name], y) for name, y in before["y"].items())
    for name, (total, weight) in before["epoch"].items():
        assert torch.equal(state["epoch"][name][0], total)
        assert torch.equal(torch.as_tensor(state["epoch"][name][1]), torch.as_tensor(weight))
    assert state["beta"] == before["beta"]


def test_a_plain_state_is_loaded_with_a_warning_and_keeps_the_multipliers():
    model = Net()
    optimizer = wrapped(model)
    train(model, optimizer, epochs=1)
    y, beta = multipliers(optimizer), optimizer.dual.beta
    plain = adam(Net(), lr=0.5)
    with pytest.warns(UserWarning, match="state_dict has no multipliers"):
        optimizer.load_state_dict(plain.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert not optimizer.state
    assert torch.equal(multipliers(optimizer), y)
    assert optimizer.dual.beta == beta


def test_a_plain_optimizer_loads_the_state_of_a_wrapped_one():
    model = Net()
    optimizer = wrapped(model)
    train(model, optimizer, epochs=1)
    plain = adam(model)
    plain.load_state_dict(saved_and_loaded(optimizer.state_dict()))
    for p in model.parameters():
        assert torch.equal(plain.state[p]["exp_avg"], optimizer.state[p]["exp_avg"])
