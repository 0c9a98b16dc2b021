"""Every misuse raises at once with the argument, the rule and the value, and changes nothing."""

import copy
import math

import pytest
import torch
from torch import nn

from torch_powalm import ConstraintRegistry, PowerALMOptimizer, prox


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def setup(net=None, batch=True, **settings):
    """A model, a registry with a parameter-only and (if asked) a batch block, and the optimizer."""
    net = net or model()
    constraints = ConstraintRegistry()
    constraints.equality("unit_rows", lambda: net[0].weight.square().sum(1) - 1)
    if batch:
        constraints.inequality("class_loss", size=2)
    return (
        net,
        constraints,
        PowerALMOptimizer(
            torch.optim.SGD(net.parameters(), 0.1), constraints, **{"beta_1": 0.1, **settings}
        ),
    )


def train_step(net, optimizer, **values):
    optimizer.zero_grad()
    out = net(torch.ones(5, 3)).square().mean(0)
    optimizer.augment(out.sum(), **(values or {"class_loss": out - 0.1})).backward()
    optimizer.step()


def snapshot(net, optimizer):
    return copy.deepcopy((net.state_dict(), optimizer.state_dict()))


def assert_same(before, after):
    torch.testing.assert_close(before, after, rtol=0, atol=0)


# ---------------------------------------------------------------------------- construction


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(nu=1.5), r"nu must be in \(0, 1\], got 1.5"),
        (dict(omega=0.5), "omega must be at least 1 and finite, got 0.5"),
        (dict(beta_1=0), "beta_1 must be positive and finite, got 0"),
        (dict(sigma_1=-1), "sigma_1 must be nonnegative and finite, got -1"),
        (dict(sigma=-1), "sigma must be 'penalty', 'paper', 'sqrt' or 'pi', got -1"),
        (dict(coupling="none"), "coupling must be 'all' or 'block', got 'none'"),
        (dict(on_nonfinite="warn"), "on_nonfinite must be 'raise' or 'skip', got 'warn'"),
        (
            dict(prox={torch.ones(2): prox.NonNegative()}),
            "prox must have parameters of base as keys",
        ),
    ],
)
def test_a_setting_out_of_range_raises(settings, message):
    with pytest.raises(ValueError, match=message):
        setup(**settings)


def test_base_must_be_an_optimizer():
    scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model().parameters(), 0.1), 1)
    with pytest.raises(TypeError, match=r"base must be a torch.optim.Optimizer, got StepLR"):
        PowerALMOptimizer(scheduler, ConstraintRegistry())


def test_base_must_not_be_wrapped():
    _, constraints, optimizer = setup()
    with pytest.raises(TypeError, match="base must not be wrapped already, got PowerALMOptimizer"):
        PowerALMOptimizer(optimizer, constraints)


def test_constraints_must_be_a_registry():
    with pytest.raises(TypeError, match="constraints must be a ConstraintRegistry, got dict"):
        PowerALMOptimizer(torch.optim.SGD(model().parameters(), 0.1), {})


def test_owns_must_be_names():
    with pytest.raises(TypeError, match="owns must be a sequence of names, got 'unit_rows'"):
        setup(owns="unit_rows")
    _, _, optimizer = setup(owns=["unknown"])
    with pytest.raises(KeyError, match="owns must have registered constraints only, got 'unknown'"):
        optimizer.step()


def test_an_empty_registry_raises_at_the_first_step():
    optimizer = PowerALMOptimizer(torch.optim.SGD(model().parameters(), 0.1), ConstraintRegistry())
    expected = r"at least one block, got none; add one with equality\(\) or inequality\(\), or step"
    with pytest.raises(ValueError, match=expected):
        optimizer.step()


def test_parameters_on_two_devices_raise():
    params = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, device="meta"))]
    constraints = ConstraintRegistry()
    constraints.equality("sum", lambda: params[0].sum())
    optimizer = PowerALMOptimizer(torch.optim.SGD(params, 0.1), constraints)
    with pytest.raises(ValueError, match="parameters must be on one device, got cpu, meta"):
        optimizer.step()


def test_shards_of_an_older_torch_raise(monkeypatch):
    net, constraints = nn.Linear(2, 2), ConstraintRegistry()
    constraints.equality("bias", lambda: net.bias)
    net.weight.full_tensor = lambda: net.weight
    monkeypatch.setattr(torch, "__version__", "2.6.0+cpu")
    message = r"fully_shard \(FSDP2\) need torch 2.7 or newer, got torch 2.6.0\+cpu"
    with pytest.raises(RuntimeError, match=message):
        PowerALMOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), constraints)


def test_parameters_flattened_by_fsdp1_raise():
    net, _, optimizer = setup(batch=False)
    net[0].weight._fsdp_flattened = True
    with pytest.raises(ValueError, match="parameters must not be flattened by FullySharded"):
        optimizer.step()


# ---------------------------------------------------------------------------- registration


@pytest.mark.parametrize("name", ["", "two words", "1st", "class", 3, None])
def test_a_name_must_be_an_identifier(name):
    with pytest.raises(ValueError, match=r"name must be a Python identifier, got"):
        ConstraintRegistry().equality(name, lambda: torch.ones(1))


@pytest.mark.parametrize("name", ["strict", "samples", "window"])
def test_a_name_must_not_be_a_keyword_of_augment(name):
    with pytest.raises(ValueError, match=f"name must not be one of .*, got '{name}'"):
        ConstraintRegistry().inequality(name, size=2)


def test_a_name_is_taken_once():
    constraints = ConstraintRegistry()
    constraints.equality("sum", lambda: torch.ones(1))
    with pytest.raises(ValueError, match="constraint 'sum' is already registered"):
        constraints.inequality("sum", size=3)
    assert list(constraints.blocks) == ["sum"]


def test_registration_ends_with_the_first_step():
    net, constraints, optimizer = setup()
    train_step(net, optimizer)
    with pytest.raises(RuntimeError, match="cannot register 'late': the registry is in use"):
        constraints.equality("late", lambda: net[1].weight)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(fn=3), TypeError, "fn of 'a' must be callable, got int"),
        (dict(fn=lambda: 1, size=2), ValueError, "fn and size of 'a' are mutually exclusive"),
        (dict(size=0), ValueError, "size of 'a' must be a positive integer, got 0"),
        (dict(size=2.0), ValueError, "size of 'a' must be a positive integer, got 2.0"),
        (dict(from_statistics=torch.sum), ValueError, "size of 'a' must be given with from_stat"),
    ],
)
def test_a_block_is_described_once(arguments, error, message):
    with pytest.raises(error, match=message):
        ConstraintRegistry().equality("a", **arguments)


@pytest.mark.parametrize(
    ("fn", "error", "message"),
    [
        (lambda p: 1.0, TypeError, "constraint 'bad' must be a tensor, got float"),
        (
            lambda p: p.long(),
            TypeError,
            "constraint 'bad' must be a floating-point tensor, got torch.int64",
        ),
        (
            lambda p: p[:0],
            ValueError,
            r"constraint 'bad' must have at least one entry, got shape \(0,\)",
        ),
        (
            lambda p: torch.ones(2),
            ValueError,
            "constraint 'bad' must depend on a parameter of the opt",
        ),
        (
            lambda p: p.detach(),
            ValueError,
            "constraint 'bad' must depend on a parameter of the opt",
        ),
        (
            lambda p: nn.Parameter(torch.ones(2)) * 1,
            ValueError,
            "constraint 'bad' must depend on a parameter of the opt",
        ),
    ],
)
def test_a_function_must_return_a_vector_with_a_gradient(fn, error, message):
    p = nn.Parameter(torch.ones(3))
    constraints = ConstraintRegistry()
    constraints.equality("good", lambda: p.sum())
    constraints.equality("bad", lambda: fn(p))
    optimizer = PowerALMOptimizer(torch.optim.SGD([p], 0.1), constraints)
    p.grad = torch.ones(3)
    with pytest.raises(error, match=message):
        optimizer.step()
    assert torch.equal(p, torch.ones(3))


def test_a_block_must_keep_its_size():
    p = nn.Parameter(torch.ones(3))
    size = 3
    constraints = ConstraintRegistry()
    constraints.equality("changing", lambda: p[:size])
    optimizer = PowerALMOptimizer(torch.optim.SGD([p], 0.1), constraints)
    optimizer.step()
    before, size = p.detach().clone(), 2
    with pytest.raises(ValueError, match="constraint 'changing' must have 3 entries, got 2"):
        optimizer.step()
    assert torch.equal(p, before)


# ---------------------------------------------------------------------------- the step


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (dict(), KeyError, "augment must have a value for 'class_loss', got none"),
        (dict(class_loss=2.0), TypeError, "constraint 'class_loss' must be a tensor, got float"),
        (
            dict(class_loss=torch.ones(3)),
            ValueError,
            "constraint 'class_loss' must have 2 entries, got 3",
        ),
        (
            dict(class_loss=torch.ones(2)),
            ValueError,
            "constraint 'class_loss' must have a gradient",
        ),
        (
            dict(class_loss=torch.ones(2), other=torch.ones(1)),
            KeyError,
            "augment has no batch constraint 'other'",
        ),
        (
            dict(class_loss=torch.ones(2), unit_rows=torch.ones(4)),
            KeyError,
            "no batch constraint 'unit_rows'",
        ),
        (
            dict(class_loss=(torch.ones(2),) * 3),
            ValueError,
            r"must be a value or \(value, count\), got 3 items",
        ),
        (
            dict(class_loss=(torch.ones(2), torch.ones(3))),
            ValueError,
            "count of 'class_loss' must have 2 entries, got 3",
        ),
        (
            dict(class_loss=(torch.ones(2), torch.tensor([1.0, -1.0]))),
            ValueError,
            r"count of 'class_loss' must be nonnegative and finite, got \[1.0, -1.0\]",
        ),
        (
            dict(class_loss=(torch.ones(2), torch.tensor([1.0, math.nan]))),
            ValueError,
            r"count of 'class_loss' must be nonnegative and finite, got \[1.0, nan\]",
        ),
        (
            dict(class_loss=torch.ones(2), samples=0),
            ValueError,
            "samples must be positive and finite, got 0",
        ),
        (
            dict(class_loss=torch.ones(2), window=[]),
            ValueError,
            "window must have at least one micro-batch, got none",
        ),
        (
            dict(class_loss=torch.ones(2), samples=3, window=[]),
            ValueError,
            r"samples must be 1 with window \(use \(value, count\)\), got 3",
        ),
        (
            dict(class_loss=torch.ones(2), strict={"other": torch.ones(1)}),
            KeyError,
            "strict has no batch constraint 'other'",
        ),
    ],
)
def test_augment_checks_what_it_is_given(values, error, message):
    net, _, optimizer = setup()
    train_step(net, optimizer)
    before = snapshot(net, optimizer)
    loss = net(torch.ones(5, 3)).sum()
    with pytest.raises(error, match=message):
        optimizer.augment(loss, **values)
    assert_same(before, snapshot(net, optimizer))
    train_step(net, optimizer)


@pytest.mark.parametrize("loss", [torch.ones(2), 1.0])
def test_augment_needs_a_scalar_loss(loss):
    _, _, optimizer = setup()
    with pytest.raises(ValueError, match="loss must be a scalar tensor, got"):
        optimizer.augment(loss, class_loss=torch.ones(2))


def test_a_step_without_augment_raises():
    net, _, optimizer = setup()
    train_step(net, optimizer)
    before = snapshot(net, optimizer)
    optimizer.zero_grad()
    net(torch.ones(5, 3)).sum().backward()
    with pytest.raises(
        RuntimeError, match=r"step needs the batch constraints 'class_loss'; call augment"
    ):
        optimizer.step()
    assert_same(before, snapshot(net, optimizer))


def test_an_update_without_a_batch_raises():
    net, _, optimizer = setup()
    train_step(net, optimizer)
    optimizer.update_multipliers()
    before = snapshot(net, optimizer)
    with pytest.raises(
        RuntimeError, match="has seen no batch of 'class_loss' since the last update"
    ):
        optimizer.update_multipliers()
    with pytest.raises(KeyError, match="update_multipliers has no batch constraint 'unit_rows'"):
        optimizer.update_multipliers(unit_rows=torch.ones(4))
    with pytest.raises(ValueError, match="constraint 'class_loss' must have 2 entries, got 3"):
        optimizer.update_multipliers(class_loss=torch.ones(3))
    assert_same(before, snapshot(net, optimizer))


def test_statistics_must_keep_their_number():
    net = model()
    constraints = ConstraintRegistry()
    constraints.inequality("rate", size=1, from_statistics=lambda s: s[:1] / s[1:2] - 0.5)
    optimizer = PowerALMOptimizer(torch.optim.SGD(net.parameters(), 0.1), constraints)

    def step(size):
        optimizer.zero_grad()
        out = net(torch.ones(2, 3)).sum()
        optimizer.augment(out, rate=torch.cat([out.reshape(1), torch.ones(size - 1)])).backward()
        optimizer.step()

    step(2)
    with pytest.raises(ValueError, match="statistics must have 2 entries as before, got 3"):
        step(3)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (dict(), "should_update takes exactly one of steps, epochs and lam"),
        (dict(steps=1, lam=1.0), "should_update takes exactly one of steps, epochs and lam"),
        (dict(steps=0), "steps must be at least 1, got 0"),
        (dict(epochs=0, steps_per_epoch=5), "epochs must be at least 1, got 0"),
        (dict(epochs=1, steps_per_epoch=0), "steps_per_epoch must be at least 1, got 0"),
        (dict(lam=0.0), "lam must be positive, got 0.0"),
    ],
)
def test_should_update_takes_one_rule(rule, message):
    with pytest.raises(ValueError, match=message):
        setup()[2].should_update(**rule)


# ---------------------------------------------------------------------------- two optimizers


def test_an_optimizer_whose_blocks_were_claimed_later_raises():
    net, constraints, first = setup(batch=False)
    first.step()
    second = PowerALMOptimizer(torch.optim.SGD(net.parameters(), 0.1), constraints, beta_1=0.1)
    second.step()
    with pytest.raises(
        RuntimeError, match="constraint 'unit_rows' is owned by an optimizer that was"
    ):
        first.step()


# ---------------------------------------------------------------------------- loading


def bad_states(state):
    def edited(**changes):
        return {**state, "powalm": {**state["powalm"], **changes}}

    y = state["powalm"]["y"]
    yield [], "state_dict must have the keys 'state' and 'param_groups', got 'list'"
    yield {"a": 1}, r"state_dict must have the keys 'state' and 'param_groups', got \['a'\]"
    yield {**state, "powalm": 3}, r"state_dict\['powalm'\] must have 'beta', got 3"
    yield edited(y={"unit_rows": y["unit_rows"]}), "state_dict must have constraint 'class_loss'"
    yield edited(y={**y, "new": torch.ones(1)}), "must have registered constraints only, got 'new'"
    yield (
        edited(y={**y, "unit_rows": torch.ones(5)}),
        "'unit_rows' in state_dict must have 4 entries, got 5",
    )
    yield (
        edited(epoch={"old": (torch.ones(2), 1.0)}),
        "must have registered constraints only, got 'old'",
    )
    yield edited(y={**y, "unit_rows": "x"}), "'unit_rows' in state_dict must be a tensor, got str"
    without = {k: v for k, v in state["powalm"].items() if k != "k"}
    yield {**state, "powalm": without}, r"state_dict\['powalm'\] must have 'k'"


@pytest.mark.parametrize("case", range(9))
def test_a_state_that_does_not_fit_raises_and_changes_nothing(case):
    net, _, optimizer = setup()
    train_step(net, optimizer)
    optimizer.update_multipliers()
    train_step(net, optimizer)
    before = snapshot(net, optimizer)
    bad, message = list(bad_states(optimizer.state_dict()))[case]
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(bad)
    assert_same(before, snapshot(net, optimizer))


def test_a_base_state_that_does_not_fit_raises_and_changes_nothing():
    net, _, optimizer = setup()
    train_step(net, optimizer)
    optimizer.update_multipliers()
    before = snapshot(net, optimizer)
    other = copy.deepcopy(optimizer.state_dict())
    other["param_groups"][0]["params"].append(99)
    other["powalm"]["beta"] = 77.0
    with pytest.raises(ValueError, match="doesn't match the size"):
        optimizer.load_state_dict(other)
    assert_same(before, snapshot(net, optimizer))
