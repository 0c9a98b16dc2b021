"""Step hooks, the profiler, and methods that the user patches."""

import functools
import types

import pytest
import torch
from torch import optim
from torch.optim import lr_scheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from tests.training.small_training import (
    HYBRID,
    Net,
    Twin,
    adam,
    assert_same,
    batches,
    measure,
    plain_step,
    train,
    train_twin,
    wrapped,
    wrapped_static,
)

# Hooks, profiler, patches


def test_step_hooks_run_around_the_step_until_removed():
    model = Net()
    optimizer = wrapped_static(model)
    start, seen = model.first.weight.detach().clone(), []

    def note(name):
        def hook(opt, args, kwargs):
            assert opt is optimizer
            moved = not torch.equal(model.first.weight, start)
            seen.append((name, moved, optimizer.epoch.steps))

        return hook

    handles = [
        optimizer.register_step_pre_hook(note("before")),
        optimizer.register_step_post_hook(note("after")),
    ]
    plain_step(model, optimizer)
    assert seen == [("before", False, 0), ("after", True, 1)]
    for handle in handles:
        handle.remove()
    plain_step(model, optimizer)
    assert len(seen) == 2


def test_a_pre_hook_may_change_the_arguments():
    model, calls = Net(), []
    optimizer = wrapped_static(model)

    def closure():
        calls.append("closure")
        optimizer.zero_grad()
        loss = measure(model, *batches()[0])[0]
        loss.backward()
        return loss

    optimizer.register_step_pre_hook(lambda opt, args, kwargs: ((opt, closure), kwargs))
    assert optimizer.step().item() > 0
    assert calls == ["closure"]


def test_hooks_do_not_change_the_result():
    ours, theirs = Net(), Net()
    optimizer, twin = wrapped(ours), Twin(HYBRID, 0.7)
    optimizer.register_step_pre_hook(lambda *_: None)
    optimizer.base.register_step_pre_hook(lambda *_: None)
    train(ours, optimizer)
    train_twin(theirs, adam(theirs), twin)
    assert_same(ours, theirs)


def test_global_hooks_run_for_the_base_and_for_the_wrapper():
    model, seen = Net(), []
    optimizer = wrapped_static(model)
    handles = [
        register_optimizer_step_pre_hook(lambda o, *_: seen.append(("before", type(o).__name__))),
        register_optimizer_step_post_hook(lambda o, *_: seen.append(("after", type(o).__name__))),
    ]
    try:
        plain_step(model, optimizer)
    finally:
        for handle in handles:
            handle.remove()
    assert seen == [
        ("before", "PowerALMOptimizer"),
        ("before", "Adam"),
        ("after", "Adam"),
        ("after", "PowerALMOptimizer"),
    ]
    plain_step(model, optimizer)
    assert len(seen) == 4


@pytest.mark.parametrize(
    "register", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook]
)
def test_a_single_global_hook_runs_for_both(register):
    model, seen = Net(), set()
    handle = register(lambda o, *_: seen.add(type(o).__name__))
    try:
        plain_step(model, wrapped_static(model))
    finally:
        handle.remove()
    assert seen == {"PowerALMOptimizer", "Adam"}


def test_state_dict_hooks_run_and_may_replace_the_state():
    model, seen = Net(), []
    optimizer = wrapped_static(model)
    plain_step(model, optimizer)
    optimizer.register_state_dict_pre_hook(lambda o: seen.append("save"))
    optimizer.register_state_dict_post_hook(lambda o, state: {**state, "note": "mine"})
    optimizer.register_load_state_dict_pre_hook(
        lambda o, state: {**state, "param_groups": [{**state["param_groups"][0], "lr": 0.7}]}
    )
    optimizer.register_load_state_dict_post_hook(
        lambda o: seen.append(("loaded", o.param_groups[0]["lr"]))
    )
    state = optimizer.state_dict()
    assert state["note"] == "mine"
    optimizer.load_state_dict(state)
    assert seen == ["save", ("loaded", 0.7)]


def test_a_load_hook_that_edits_its_argument_does_not_edit_the_caller_s():
    optimizer = wrapped(Net())
    optimizer.register_load_state_dict_pre_hook(lambda o, state: state.update(note="mine"))
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    assert "note" not in state


def test_the_profiler_shows_both_steps():
    model = Net()
    optimizer = wrapped_static(model)
    plain_step(model, optimizer)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        plain_step(model, optimizer)
    names = {event.key for event in profile.key_averages()}
    assert "Optimizer.step#PowerALMOptimizer.step" in names
    assert "Optimizer.step#Adam.step" in names
    assert "Optimizer.zero_grad#Adam.zero_grad" in names


def test_a_step_that_nobody_observes_opens_no_profiler_range(monkeypatch):
    opened = []
    record = torch.autograd.profiler.record_function
    monkeypatch.setattr(
        torch.autograd.profiler, "record_function", lambda name: opened.append(name) or record(name)
    )
    model = Net()
    plain_step(model, adam(model))
    assert opened == ["Optimizer.zero_grad#Adam.zero_grad", "Optimizer.step#Adam.step"]
    optimizer = wrapped_static(model)
    opened.clear()
    plain_step(model, optimizer)
    assert opened == []


@pytest.mark.parametrize("patched", ["wrapper", "base"])
def test_a_step_patched_by_the_user_is_the_one_that_runs(patched):
    ours, theirs, calls = Net(), Net(), []
    optimizer = wrapped(ours)
    target = optimizer if patched == "wrapper" else optimizer.base
    original = target.step

    def step(self, *args, **kwargs):
        calls.append(type(self).__name__)
        return original(*args, **kwargs)

    target.step = types.MethodType(step, target)
    scheduler = lr_scheduler.ConstantLR(optimizer, factor=1.0)
    train(ours, optimizer, epochs=2)
    scheduler.step()
    train_twin(theirs, adam(theirs), Twin(HYBRID, 0.7), epochs=2)
    assert calls == [type(target).__name__] * 6
    assert_same(ours, theirs)


@pytest.mark.parametrize("how", ["wrapped", "marked"])
def test_a_step_overridden_in_the_class_of_the_base_is_the_one_that_runs(how):
    """Decorators copy the marks that torch leaves on a step, and libraries set them by hand."""
    calls = []
    ours, theirs = Net(), Net()
    plain = optim.SGD(theirs.parameters(), lr=0.02)  # from its first instance on SGD has the marks

    class Counting(optim.SGD):
        def step(self, closure=None):
            calls.append("step")
            return super().step(closure)

        if how == "wrapped":
            step = functools.wraps(optim.SGD.step)(step)
        else:
            step.hooked = True

    optimizer = wrapped(ours, Counting(ours.parameters(), lr=0.02))
    train(ours, optimizer, epochs=2)
    train_twin(theirs, plain, Twin(HYBRID, 0.7), epochs=2)
    assert len(calls) == 6
    assert_same(ours, theirs)


def test_a_zero_grad_patched_by_the_user_is_the_one_that_runs():
    model, calls = Net(), []
    optimizer = wrapped_static(model)
    original = optimizer.base.zero_grad

    def zero_grad(set_to_none=True):
        calls.append(set_to_none)
        original(set_to_none=set_to_none)

    optimizer.base.zero_grad = zero_grad
    optimizer.zero_grad()
    optimizer.zero_grad(set_to_none=False)
    assert calls == [True, False]
