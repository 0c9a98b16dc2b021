"""What augment() accepts, and what its calls leave behind."""

import copy

import pytest
import torch
from torch import Tensor, nn

from tests.training.small_training import (
    F64,
    HYBRID,
    Net,
    Twin,
    assert_same,
    batches,
    constrained,
    measure,
    multipliers,
    registry,
    small,
    train,
    train_twin,
    two_nets,
)
from tests.training.test_augmented_gradient import BASES
from torch_powalm import ConstraintRegistry


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param("discarded", id="a discarded forward"),
        pytest.param("validation", id="a validation without gradients"),
        pytest.param("ema", id="a validation with averaged weights"),
    ],
)
@pytest.mark.parametrize("where", ["before forward", "before backward", "before step"])
def test_calls_that_are_not_trained_on_change_nothing(extra, where):
    def disturb(model, optimizer):
        x, target = batches()[0]
        if extra == "discarded":
            loss, values = measure(model, 3 * x, target)
            optimizer.augment(loss, **values)
            return
        saved = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            if extra == "ema":
                for p in model.parameters():
                    p.mul_(0.5)
            loss, values = measure(model, 3 * x, target)
            assert optimizer.augment(loss, **values).item() == loss.item()
            model.load_state_dict(saved)

    ours, theirs = two_nets()
    optimizer = constrained(BASES["adam"](ours.parameters()), registry(ours), nu=0.7)
    for _ in range(2):
        for x, target in batches():
            optimizer.zero_grad()
            if where == "before forward":
                disturb(ours, optimizer)
            loss, values = measure(ours, x, target)
            loss = optimizer.augment(loss, **values)
            # In-place writes to the weights would invalidate the graph: no swap between the two.
            if where == "before backward" and extra == "discarded":
                disturb(ours, optimizer)
            loss.backward()
            if where == "before step":
                disturb(ours, optimizer)
            optimizer.step()
        optimizer.update_multipliers()
    twin = Twin(HYBRID, 0.7)
    train_twin(theirs, BASES["adam"](theirs.parameters()), twin, epochs=2)
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)


def test_a_validation_before_the_first_step_does_not_set_the_start_norm():
    """Lightning's sanity check; the paper's step size is relative to ‖A(x_1)‖ of the training."""
    nets = two_nets()
    optimizers = [
        constrained(torch.optim.SGD(net.parameters(), 0.01), registry(net), sigma="paper")
        for net in nets
    ]
    x, target = batches()[1]
    with torch.no_grad():
        loss, values = measure(nets[0], 50 * x, target)
        optimizers[0].augment(loss, **values)
    for net, optimizer in zip(nets, optimizers, strict=True):
        train(net, optimizer, epochs=2)
    assert_same(multipliers(optimizers[0]), multipliers(optimizers[1]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rate": "p"}, "augment must have a value for 'recall', got none"),
        ({}, "augment must have a value for 'rate', got none"),
        (
            {"rate": "p", "recall": "p", "recal": "p"},
            "augment has no batch constraint 'recal'",
        ),
        (
            {"rate": "p", "recall": "p", "strict": {"recal": "p"}},
            "strict has no batch constraint 'recal'",
        ),
        (
            {"rate": "p", "recall": "p", "window": [{"rate": "p"}]},
            "window must have a value for 'recall', got none",
        ),
        (
            {"rate": "p", "recall": "p", "window": [{"rate": "p", "recall": "p", "x": "p"}]},
            "window has no batch constraint 'x'",
        ),
    ],
)
def test_a_missing_or_unknown_name_raises_and_leaves_nothing(arguments, message):
    p, _, optimizer = small("rate", "recall")

    def fill(value):
        if isinstance(value, dict):
            return {k: fill(v) for k, v in value.items()}
        return [fill(v) for v in value] if isinstance(value, list) else p * 1

    with pytest.raises(KeyError, match=message):
        optimizer.augment(p.sum(), **fill(arguments))
    p.sum().backward()
    with pytest.raises(RuntimeError, match="'rate', 'recall'"):  # the failed call does not count
        optimizer.step()


def test_a_name_of_a_parameter_only_block_is_unknown_to_augment():
    model = Net()
    optimizer = constrained(torch.optim.SGD(model.parameters(), 0.1), registry(model, batch=False))
    with pytest.raises(KeyError, match="augment has no batch constraint 'unit_rows'"):
        optimizer.augment(model.unit_rows().sum(), unit_rows=model.unit_rows())


@pytest.mark.parametrize("how", ["no augment", "raw loss", "second step"])
def test_a_step_without_its_augment_raises_and_changes_nothing(how):
    p, constraints, optimizer = small("rate")
    optimizer.augment(p.sum(), rate=p - 1).backward()
    optimizer.step()
    before = p.detach().clone(), copy.deepcopy(optimizer.state_dict())
    if how != "second step":
        optimizer.zero_grad()
        if how == "raw loss":
            optimizer.augment(p.sum(), rate=p - 1)
        p.sum().backward()
    with pytest.raises(
        RuntimeError, match=r"step needs the batch constraints 'rate'; call augment\(\)"
    ):
        optimizer.step()
    assert_same(p.detach(), before[0])
    after = optimizer.state_dict()
    assert_same(after["state"][0]["momentum_buffer"], before[1]["state"][0]["momentum_buffer"])
    assert after["powalm"]["steps"] == 1
    assert constraints.epoch_sums(["rate"])["rate"].weight == 1


@pytest.mark.parametrize("nu", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("kind", ["equality", "inequality"])
@pytest.mark.parametrize("y", [0.0, 2.0])
def test_at_a_residual_of_zero_the_weight_is_the_multiplier(kind, nu, y):
    """At A = 0 a careless ‖A‖^(ν−1) A is nan."""
    p = nn.Parameter(torch.tensor([1.0, 2.0], dtype=F64))
    constraints = ConstraintRegistry()
    getattr(constraints, kind)("fixed", lambda: p - torch.tensor([1.0, 2.0], dtype=F64))
    getattr(constraints, kind)("seen", size=2)
    optimizer = constrained(torch.optim.SGD([p], 0.1), constraints, nu=nu)
    state = optimizer.state_dict()
    piece = torch.full((2,), y, dtype=F64)
    state["powalm"]["y"] = {"fixed": piece, "seen": piece}
    optimizer.load_state_dict(state)
    optimizer.augment(p.sum(), seen=p - p.detach()).backward()
    assert_same(p.grad, torch.full((2,), 1 + y, dtype=F64), rtol=1e-12)
    optimizer.backward_constraints()
    assert_same(p.grad, torch.full((2,), 1 + 2 * y, dtype=F64), rtol=1e-12)
    optimizer.step()
    with torch.no_grad():
        p.copy_(torch.tensor([1.0, 2.0], dtype=F64))
    optimizer.update_multipliers()
    assert_same(multipliers(optimizer), torch.full((4,), y, dtype=F64), rtol=1e-12)


@pytest.mark.parametrize("nu", [0.3, 1.0])
def test_inactive_inequalities_give_no_gradient(nu):
    p = nn.Parameter(torch.tensor([1.0, 2.0], dtype=F64))
    constraints = ConstraintRegistry()
    constraints.inequality("far", lambda: p.square() - 100)
    optimizer = constrained(torch.optim.SGD([p], 0.1), constraints, nu=nu)
    p.sum().backward()
    optimizer.step()
    optimizer.update_multipliers()
    assert p.grad.tolist() == [1.0, 1.0]
    assert multipliers(optimizer).tolist() == [0.0, 0.0]


def constant() -> Tensor:
    return torch.ones(2, dtype=F64)


@pytest.mark.parametrize("case", ["constant", "other module", "detached", "frozen"])
def test_a_parameter_only_block_without_gradient_raises_with_its_name(case):
    p = nn.Parameter(torch.ones(2, dtype=F64))
    frozen = nn.Parameter(torch.ones(2, dtype=F64), requires_grad=False)
    fn = {
        "constant": constant,
        "other module": Net().unit_rows,
        "detached": lambda: p.detach() - 1,
        "frozen": lambda: frozen - 3,
    }[case]
    constraints = ConstraintRegistry()
    constraints.equality("fine", lambda: p.sum())
    constraints.equality("lost", fn)
    optimizer = constrained(torch.optim.SGD([p, frozen], 0.1), constraints)
    p.sum().backward()
    with pytest.raises(ValueError, match="constraint 'lost' must depend on a parameter"):
        optimizer.step()
    assert p.tolist() == [1.0, 1.0]


def test_a_batch_block_without_gradient_raises_with_its_name():
    p, _, optimizer = small("rate", "recall")
    with pytest.raises(ValueError, match="constraint 'recall' must have a gradient"):
        optimizer.augment(p.sum(), rate=p - 1, recall=p.detach())


@pytest.mark.parametrize("call", ["step", "augment", "update_multipliers"])
def test_a_parameter_only_block_that_changes_size_raises_with_its_name(call):
    p, constraints, optimizer = small("rate")
    rows = [3]
    constraints.equality("rows", lambda: p[: rows[0]] - 1)
    loss = optimizer.augment(p.sum(), rate=p - 1)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss = optimizer.augment(p.sum(), rate=p - 1)
    loss.backward()
    before = p.detach().clone()
    rows[0] = 2
    arguments = ((p.sum(),), {"rate": p - 1}) if call == "augment" else ((), {})
    with pytest.raises(ValueError, match="constraint 'rows' must have 3 entries, got 2"):
        getattr(optimizer, call)(*arguments[0], **arguments[1])
    assert_same(p.detach(), before)
    assert multipliers(optimizer).tolist() == [0.0] * 6


def test_a_batch_block_of_another_size_raises_with_its_name():
    p, _, optimizer = small("rate")
    with pytest.raises(ValueError, match="constraint 'rate' must have 3 entries, got 2"):
        optimizer.augment(p.sum(), rate=p[:2])
