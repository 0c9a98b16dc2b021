"""What torch expects of an optimizer, and every base against a loop that differentiates L_β."""

import copy
import functools
import io
import pickle
import types
from typing import Any

import prodigyopt
import pytest
import schedulefree
import torch
from test_injection import (
    F64,
    HYBRID,
    STATIC,
    Net,
    Twin,
    assert_same,
    batches,
    constrained,
    measure,
    multipliers,
    registry,
    static,
    train,
    train_twin,
)
from torch import nn, optim
from torch.distributed.checkpoint import load, save
from torch.distributed.checkpoint import state_dict as dcp
from torch.optim import lr_scheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.optim.swa_utils import SWALR

from torch_powalm import ConstraintRegistry, PowerALMOptimizer
from torch_powalm.stateful import MultiplierState


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def adam(model: nn.Module, **settings: Any) -> optim.Adam:
    return optim.Adam(model.parameters(), **{"lr": 0.02, **settings})


def wrapped(model: Net, base: optim.Optimizer | None = None, **settings: Any) -> PowerALMOptimizer:
    settings = {"nu": 0.7, **settings}
    return constrained(adam(model) if base is None else base, registry(model), **settings)


def wrapped_static(model: Net, base: optim.Optimizer | None = None) -> PowerALMOptimizer:
    base = adam(model) if base is None else base
    return constrained(base, registry(model, batch=False), nu=0.7)


def plain_step(model: Net, optimizer: optim.Optimizer, batch: int = 0) -> None:
    """A step of a loop that knows nothing of constraints."""
    optimizer.zero_grad()
    measure(model, *batches()[batch])[0].backward()
    optimizer.step()


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
    base.favourite, base._secret = "public", "private"
    optimizer = constrained(base, ConstraintRegistry())
    assert optimizer.favourite == "public"
    assert not hasattr(optimizer, "_secret")
    assert not hasattr(optimizer, "train")
    # GradScaler would hand its work to a fused base that does not see the constraints.
    fused = constrained(adam(Net(), fused=True), ConstraintRegistry())
    assert fused.base._step_supports_amp_scaling
    assert not fused._step_supports_amp_scaling


def test_repr_shows_the_settings_the_blocks_and_the_base():
    text = repr(wrapped(Net(), nu=0.6, beta_1=2.5))
    for part in ("PowerALMOptimizer", "nu=0.6", "beta=2.5", "unit_rows", "class_loss", "lr: 0.02"):
        assert part in text


# Schedulers


def sequential(optimizer):
    first = lr_scheduler.ConstantLR(optimizer, factor=0.1, total_iters=2)
    second = lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    return lr_scheduler.SequentialLR(optimizer, [first, second], milestones=[2])


SCHEDULERS = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, step_size=2, gamma=0.1),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=8),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=3),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda k: k / 6),
    "SequentialLR": sequential,
    "SWALR": lambda o: SWALR(o, swa_lr=0.001, anneal_epochs=3),
}


@pytest.mark.parametrize("place", ["wrapper", "base"])
@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
def test_schedulers_drive_the_base_without_warnings(make, place):
    ours, theirs = Net(), Net()
    optimizer, plain = wrapped(ours), adam(theirs)
    schedulers = make(optimizer if place == "wrapper" else optimizer.base), make(plain)
    twin, rates = Twin(HYBRID, 0.7), []
    for _ in range(6):
        train(ours, optimizer, epochs=1)
        train_twin(theirs, plain, twin, epochs=1)
        for scheduler in schedulers:
            scheduler.step(*([1.0] if "Plateau" in type(scheduler).__name__ else []))
        rates.append(optimizer.param_groups[0]["lr"])
        assert optimizer.param_groups[0]["lr"] == plain.param_groups[0]["lr"]
        assert optimizer.param_groups[0]["betas"] == plain.param_groups[0]["betas"]
    assert len(set(rates)) > 1
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)


@pytest.mark.parametrize("loss", ["a loss", "a sum of parameters", "no loss"])
def test_a_warmup_from_zero_still_puts_the_constraint_gradient_into_the_moments(loss):
    """The first step has lr 0 and an empty state, as torch's own state-making step has."""
    model, reference = Net(), Net()
    optimizer = wrapped_static(model)
    lr_scheduler.LambdaLR(optimizer, lambda k: k / 4)
    assert optimizer.param_groups[0]["lr"] == 0
    terms = {
        "a loss": lambda net: measure(net, *batches()[0])[0],
        "a sum of parameters": lambda net: sum(p.sum() for p in net.parameters()),
        "no loss": lambda net: 0 * net.first.weight.sum(),
    }
    optimizer.zero_grad()
    if loss != "no loss":
        terms[loss](model).backward()
    optimizer.step()
    (terms[loss](reference) + Twin(STATIC, 0.7).value(static(reference))).backward()
    moments = optimizer.state[model.first.weight]
    assert_same(moments["exp_avg"], 0.1 * reference.first.weight.grad)
    assert optimizer.steps == 1
    assert_same(model, Net())


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


# Hooks, profiler, patches


def test_step_hooks_run_around_the_step_until_removed():
    model = Net()
    optimizer = wrapped_static(model)
    start, seen = model.first.weight.detach().clone(), []

    def note(name):
        def hook(opt, args, kwargs):
            assert opt is optimizer
            moved = not torch.equal(model.first.weight, start)
            seen.append((name, moved, optimizer.steps))

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
    assert optimizer.steps == 2


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


# Every base

BASES = {
    "SGD": lambda p: optim.SGD(p, lr=0.02),
    "SGD nesterov": lambda p: optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD foreach": lambda p: optim.SGD(p, lr=0.02, momentum=0.9, foreach=True),
    "SGD fused": lambda p: optim.SGD(p, lr=0.02, momentum=0.9, fused=True),
    "Adam": lambda p: optim.Adam(p, lr=0.02),
    "Adam amsgrad": lambda p: optim.Adam(p, lr=0.02, amsgrad=True),
    "Adam foreach": lambda p: optim.Adam(p, lr=0.02, foreach=True),
    "Adam fused": lambda p: optim.Adam(p, lr=0.02, fused=True),
    "Adam with a tensor lr": lambda p: optim.Adam(p, lr=torch.tensor(0.02, dtype=F64)),
    "AdamW": lambda p: optim.AdamW(p, lr=0.02, weight_decay=0.1),
    "AdamW fused amsgrad": lambda p: optim.AdamW(p, lr=0.02, fused=True, amsgrad=True),
    "NAdam": lambda p: optim.NAdam(p, lr=0.02),
    "RAdam": lambda p: optim.RAdam(p, lr=0.02),
    "Adamax": lambda p: optim.Adamax(p, lr=0.02),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.05),
    "Adagrad fused": lambda p: optim.Adagrad(p, lr=0.05, fused=True),
    "Adadelta": lambda p: optim.Adadelta(p, lr=1.0),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "Rprop": lambda p: optim.Rprop(p, lr=0.01),
    "ASGD": lambda p: optim.ASGD(p, lr=0.02),
    "Adafactor": lambda p: optim.Adafactor(p, lr=0.02),
    "Muon": lambda p: optim.Muon(p, lr=0.02),
    "Prodigy": lambda p: prodigyopt.Prodigy(p, lr=1.0, d0=0.01),
}


@pytest.mark.parametrize("make", BASES.values(), ids=BASES)
def test_every_base_equals_a_loop_that_differentiates_the_full_lagrangian(make):
    ours, theirs = Net(), Net()
    optimizer, twin = wrapped(ours, make(ours.parameters())), Twin(HYBRID, 0.7)
    train(ours, optimizer)
    train_twin(theirs, make(theirs.parameters()), twin)
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)
    assert (ours.first.weight - Net().first.weight).detach().norm() > 0.05  # it did move


SCHEDULE_FREE = {
    "AdamWScheduleFree": lambda p: schedulefree.AdamWScheduleFree(p, lr=0.02, warmup_steps=2),
    "SGDScheduleFree": lambda p: schedulefree.SGDScheduleFree(p, lr=0.1),
}


@pytest.mark.parametrize("make", SCHEDULE_FREE.values(), ids=SCHEDULE_FREE)
def test_a_schedule_free_base_is_switched_between_training_and_evaluation(make):
    ours, theirs = Net(), Net()
    optimizer, plain = wrapped(ours, make(ours.parameters())), make(theirs.parameters())
    twin = Twin(HYBRID, 0.7)
    for _ in range(2):
        optimizer.train()
        plain.train()
        train(ours, optimizer, epochs=1)
        train_twin(theirs, plain, twin, epochs=1)
        assert_same(ours, theirs)
        training = ours.first.weight.detach().clone()
        optimizer.eval()
        plain.eval()
        assert_same(ours, theirs)
        assert not torch.equal(ours.first.weight, training)
    assert_same(multipliers(optimizer), twin.y)


class Signs(optim.Optimizer):
    """Moves by the sign of the gradient; its groups have no lr."""

    def __init__(self, params):
        super().__init__(params, {"size": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["size"] * p.grad.sign())


def test_a_base_without_a_learning_rate_works():
    p = nn.Parameter(torch.tensor([1.0, -1.0], dtype=F64))
    constraints = ConstraintRegistry()
    constraints.equality("zero", lambda: p)
    optimizer = constrained(Signs([p]), constraints)
    optimizer.step()
    assert_same(p.detach(), torch.tensor([0.9, -0.9], dtype=F64))


def test_a_base_that_maximizes_is_refused():
    """It would climb the penalty too, and leave the feasible set as fast as it can."""
    with pytest.raises(ValueError, match="maximize"):
        wrapped(Net(), optim.SGD(Net().parameters(), lr=0.1, maximize=True))


def test_complex_parameters_are_trained():
    p = nn.Parameter(torch.tensor([3 + 4j, 1j], dtype=torch.complex128))
    constraints = ConstraintRegistry()
    constraints.equality("unit", lambda: torch.view_as_real(p).square().sum(1) - 1)
    optimizer = constrained(optim.SGD([p], lr=0.01), constraints, nu=1.0)
    optimizer.step()
    expected = torch.tensor([(3 + 4j) * (1 - 0.01 * 2 * 24), 1j], dtype=torch.complex128)
    torch.testing.assert_close(p.detach(), expected, rtol=1e-12, atol=0)


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
    assert optimizer.steps == 0
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
    assert optimizer.steps == 0


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
    assert second.steps == int(in_the_epoch)


def test_the_state_of_multipliers_is_that_of_a_wrapped_optimizer():
    with pytest.raises(TypeError, match="optimizer must be a PowerALMOptimizer, got Adam"):
        MultiplierState(torch.optim.Adam(Net().parameters()))
