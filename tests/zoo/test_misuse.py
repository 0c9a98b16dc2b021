"""Bad input to the zoo is rejected by name."""

import pytest
import torch
from torch import nn

from torch_powalm import ConstraintRegistry, PowerALMOptimizer, ProxyValue, zoo

Z = torch.randn(6, requires_grad=True)
Y = torch.tensor([0, 1, 0, 1, 1, 0])
NET = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
SQUARE, WIDE = nn.Linear(3, 3), nn.Linear(3, 2)
REFERENCE = zoo.frozen_copy(nn.Linear(3, 2))
X = torch.randn(6, 3)


def make(name, *arguments, **settings):
    return getattr(zoo, name)(ConstraintRegistry(), "block", *arguments, **settings)


REGISTRATIONS = [
    ("false_negative_rate", (), {"bound": 1.5}, "bound of 'block' must be in [0, 1], got 1.5"),
    ("coverage", (), {"low": 0.5, "high": 0.4}, "high of 'block' must be in [0.5, 1], got 0.4"),
    ("demographic_parity", (), {"bound": -1}, "bound of 'block' must be in [0, 1], got -1"),
    (
        *("demographic_parity", (), {"bound": 0.1, "groups": 1}),
        "groups of 'block' must be at least 2, got 1",
    ),
    (
        *("precision", (), {"bound": 0.1, "groups": 0}),
        "groups of 'block' must be a positive integer, got 0",
    ),
    (
        *("precision", (), {"bound": 0.1, "groups": ()}),
        "groups of 'block' must have at least one attribute, got none",
    ),
    (
        *("precision", (), {"bound": 0.1, "positive": -1}),
        "positive of 'block' must be one or several classes, got -1",
    ),
    (
        *("precision", (), {"bound": 0.1, "sharpness": 0}),
        "sharpness of 'block' must be positive, got 0",
    ),
    (
        *("precision", (), {"bound": 0.1, "sharpness": "8"}),
        "sharpness of 'block' must be positive, got '8'",
    ),
    (
        *("class_loss", (), {"classes": 2.5, "bound": 1}),
        "classes of 'block' must be a positive integer, got 2.5",
    ),
    (
        *("sample_loss", (), {"samples": 3, "bound": float("nan")}),
        "bound of 'block' must be a finite number, got nan",
    ),
    (
        *("loss_quantile", (), {"quantile": 1.2, "bound": 1}),
        "quantile of 'block' must be in [0, 1], got 1.2",
    ),
    (
        *("loss_quantile", (), {"quantile": 0.5, "bound": 0.0}),
        "bound of 'block' must be positive, got 0.0",
    ),
    ("orthonormal", (WIDE.weight,), {}, "weight of 'block' must be a module or a function"),
    ("orthonormal", (nn.Tanh(),), {}, "weight of 'block' must be a module with a weight"),
    (
        *("orthonormal", (nn.Conv1d(1, 2, 3),), {}),
        "weight of 'block' must be a matrix, got shape (2, 1, 3)",
    ),
    ("symmetric", (WIDE,), {}, "weight of 'block' must be square, got shape (2, 3)"),
    (
        *("positive_definite", (SQUARE,), {"bound": -0.1}),
        "bound of 'block' must be in [0, inf), got -0.1",
    ),
    ("spectral_norm", (WIDE,), {"bound": 0}, "bound of 'block' must be positive, got 0"),
    (
        *("l0_budget", ([SQUARE],), {"bound": 1}),
        "gates of 'block' must be HardConcrete modules, got Linear",
    ),
    (
        *("monotone", (NET,), {"increasing": [0], "decreasing": [0]}),
        "increasing and decreasing of 'block' must name each feature once, got [0, 0]",
    ),
    ("monotone", (NET,), {}, "must name each feature once, got []"),
    ("bounded", (NET,), {}, "low or high of 'block' must be given, got None for both"),
    (
        *("bounded", (NET,), {"low": 2, "high": 1}),
        "low of 'block' must be at most high, got 2 and 1",
    ),
    (
        *("bounded", ("net",), {"low": 0}),
        "model of 'block' must be a module or a function, got str",
    ),
    (
        *("bounded", (NET,), {"low": 0, "points": torch.zeros(0, 3)}),
        "points of 'block' must be a tensor with one row per point, got (0, 3)",
    ),
    (
        *("boundary", (NET, torch.zeros(3)), {}),
        "value of 'block' must be a function or a number without fixed points, got 3 entries",
    ),
    (
        *("boundary", (NET, torch.zeros(3)), {"points": X}),
        "value of 'block' must be one of 6 entries, got 3 entries",
    ),
    ("boundary", (NET,), {"bound": -1.0}, "bound of 'block' must be in [0, inf), got -1.0"),
    (
        *("conservation", (NET, X), {}),
        "slices of 'block' must have shape (times, points, inputs), got (6, 3)",
    ),
    (
        *("conservation", (NET, X[None]), {}),
        "slices of 'block' must have at least 2 times, got 1",
    ),
    (
        *("conservation", (NET, X.view(2, 3, 3)), {"weights": torch.ones(2)}),
        "weights of 'block' must have 3 entries, got 2",
    ),
    (
        *("target_kl", (nn.Linear(3, 2),), {"bound": 0.1}),
        "reference of 'block' must be in evaluation mode (call .eval()), got training mode",
    ),
    (
        *("target_kl", (torch.sin,), {"bound": 0.1}),
        "reference of 'block' must be a torch.nn.Module, got builtin_function_or_method",
    ),
    ("feature_distance", (), {"bound": -1}, "bound of 'block' must be in [0, inf), got -1"),
]


@pytest.mark.parametrize(
    ("name", "arguments", "settings", "message"),
    REGISTRATIONS,
    ids=[f"{name}-{message[:40]}" for name, _, _, message in REGISTRATIONS],
)
def test_a_registration_says_what_is_wrong(name, arguments, settings, message):
    with pytest.raises((ValueError, TypeError)) as caught:
        make(name, *arguments, **settings)
    assert message in str(caught.value)


def rate():
    return make("false_negative_rate", bound=0.1)


BATCHES = {
    "unknown group": (
        lambda: make("demographic_parity", bound=0.1)(Z, group=torch.tensor([0, 1, 2, 0, 0, 0])),
        "group of 'block' must be in [0, 2), got 2",
    ),
    "no group": (
        lambda: make("demographic_parity", bound=0.1)(Z, Y),
        "group of 'block' must be passed as group=…, got none",
    ),
    "group of an attribute": (
        lambda: make("false_negative_rate", bound=0.1, groups=(2, 2))(Z, Y, group=(Y, Y + 1)),
        "attribute 1 of group of 'block' must be in [0, 2), got 2",
    ),
    "number of attributes": (
        lambda: make("false_negative_rate", bound=0.1, groups=(2, 2))(Z, Y, group=Y),
        "group of 'block' must have 2 attributes per sample, got another number",
    ),
    "labels out of range": (
        lambda: rate()(Z, Y - 1),
        "labels of 'block' must be in [0, 2), got -1",
    ),
    "labels between classes": (
        lambda: rate()(Z, Y + 0.5),
        "labels of 'block' must be whole numbers, got 0.5",
    ),
    "no labels": (
        lambda: rate()(Z),
        "labels of 'block' must be given, got none",
    ),
    "labels of several classes": (
        lambda: rate()(Z, torch.ones(6, 2)),
        "labels of 'block' must be one index or a one-hot row per sample, got other rows",
    ),
    "decisions": (
        lambda: rate()(Z > 0, Y),
        "logits of 'block' must be scores (a decision has no gradient), got torch.bool",
    ),
    "logits of three axes": (
        lambda: rate()(torch.zeros(2, 3, 4), Y),
        "logits of 'block' must have one row per sample, got shape (2, 3, 4)",
    ),
    "unknown class": (
        lambda: make("false_negative_rate", bound=0.1, positive=3)(torch.zeros(6, 3), Y),
        "positive of 'block' must be in [0, 3), got 3",
    ),
    "a mean loss": (
        lambda: make("group_loss", groups=2, bound=1)(Z.mean(), Y),
        "losses of 'block' must have one entry per sample (reduction=\"none\"), got ()",
    ),
    "an unknown sample": (
        lambda: make("sample_loss", samples=5, bound=1)(Z, torch.arange(6)),
        "index of 'block' must be in [0, 5), got 5",
    ),
    "a reference that went back to training": (
        lambda: _back_to_training(),
        "reference of 'block' must be in evaluation mode (call .eval()), got training mode",
    ),
    "no inputs for the reference": (
        lambda: make("target_kl", REFERENCE, bound=1)(WIDE(X)),
        "inputs of 'block' must be given for the reference, got none",
    ),
    "logits of another shape": (
        lambda: make("target_kl", REFERENCE, bound=1)(SQUARE(X), X),
        "logits of 'block' must have the shape (6, 2) of the reference's, got (6, 3)",
    ),
    "features of another shape": (
        lambda: make("feature_distance", bound=1)(SQUARE(X), WIDE(X)),
        "features of 'block' must have the shape (6, 2) of the reference's, got (6, 3)",
    ),
    "an unknown feature": (
        lambda: make("monotone", NET, increasing=[3])(X),
        "features of 'block' must be columns in [0, 3), got 3",
    ),
    "two outputs": (
        lambda: make("monotone", WIDE, increasing=[1])(X),
        "model must have one output per point for a derivative, got (6, 2)",
    ),
    "points that are none": (
        lambda: make("bounded", NET, low=0)([1.0]),
        "points of 'block' must be a tensor with one row per point, got list",
    ),
    "a value of another shape": (
        lambda: make("boundary", NET, lambda x: x)(X),
        "value of 'block' must have the shape (6, 1) of the solution, got 18 entries",
    ),
    "a function of the parameters": (
        lambda: make("orthonormal", WIDE)(X),
        "constraint 'block' is a function of the parameters; leave it out of augment",
    ),
    "no exact value": (
        lambda: make("orthonormal", WIDE).certified(),
        "constraint 'block' has no separate exact value; see constraints.values()",
    ),
    "open share": (lambda: zoo.HardConcrete(3, open_share=1.0), "open_share must be in (0, 1)"),
    "singular vectors of another network": (
        lambda: make("lipschitz", [WIDE], bound=1).load_state_dict(
            {"weights": [X, X], "left": [], "right": []}
        ),
        "state must have 1 matrices, got 2",
    ),
}


def _back_to_training():
    reference = zoo.frozen_copy(WIDE)
    entry = make("target_kl", reference, bound=1)
    reference.train()
    entry(WIDE(X), X)


@pytest.mark.parametrize("case", BATCHES)
def test_a_batch_says_what_is_wrong(case):
    call, message = BATCHES[case]
    with pytest.raises((ValueError, TypeError, RuntimeError)) as caught:
        call()
    assert message in str(caught.value)


def test_a_proxy_without_gradient_is_said_by_name():
    net = nn.Linear(3, 1)
    constraints = ConstraintRegistry()
    missed = zoo.false_negative_rate(constraints, "missed", bound=0.1)
    optimizer = PowerALMOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), constraints)
    with pytest.raises(
        ValueError, match="constraint 'missed' must have a gradient, got a constant"
    ):
        optimizer.augment(net(X).sum(), missed=missed(net(X).detach(), Y))


def test_a_strict_value_cannot_be_given_twice():
    net = nn.Linear(3, 1)
    constraints = ConstraintRegistry()
    constraints.inequality("block", size=1)
    optimizer = PowerALMOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), constraints)
    value = net(X).sum().reshape(1)
    with pytest.raises(ValueError, match="strict of 'block' must not be given twice"):
        optimizer.augment(
            net(X).sum(), block=ProxyValue(value, value.detach()), strict={"block": value.detach()}
        )
