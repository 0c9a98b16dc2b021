"""Where the constraints' gradient enters, against loops that differentiate L_β in full.

Also home of the textbook twin and of the small problem that the other tests of the wrapper use.
"""

import copy
import gc
import math
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from torch_powalm import ConstraintRegistry, PowerALMOptimizer

F64 = torch.float64
NU = pytest.mark.parametrize("nu", [0.3, 0.7, 1.0])


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


class Twin:
    """The dual side from the textbook: y, β, and the value of the penalty with slacks eliminated.

    u = max(B, −t y) with t = ‖(A, u)‖^(1−ν)/β by brute iteration, then y·u + β/(1+ν) ‖u‖^(1+ν).
    """

    def __init__(self, inequality: Iterable[bool], nu: float, omega: float = 1.1) -> None:
        self.inequality = torch.tensor(list(inequality))
        self.nu, self.omega, self.beta = nu, omega, 1.0
        self.y = torch.zeros(len(self.inequality), dtype=F64)

    def residual(self, r: Tensor) -> Tensor:
        u, t = r, math.inf
        for _ in range(200):  # a contraction with factor 1 − ν, so 0.7^200 at worst
            t, t_prev = float(u.detach().norm()) ** (1 - self.nu) / self.beta, t
            if t == t_prev:
                break
            u = torch.where(self.inequality, torch.maximum(r, -t * self.y), r)
        return u

    def value(self, r: Tensor) -> Tensor:
        u = self.residual(r)
        return self.y @ u + self.beta / (1 + self.nu) * u.norm() ** (1 + self.nu)

    def update(self, r: Tensor) -> None:
        u = self.residual(r.detach())
        if float(u.norm()) > 0:
            self.y = self.y + self.beta * u.norm() ** (self.nu - 1) * u
        self.y = torch.where(self.inequality, self.y.clamp(min=0), self.y)
        self.beta *= self.omega


class Net(nn.Module):
    """Two layers without biases (Muon takes matrices only), with constraints as bound methods."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5, bias=False, dtype=F64)
        self.second = nn.Linear(5, 3, bias=False, dtype=F64)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(0.6 * torch.randn(p.shape, generator=generator, dtype=F64))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))

    def unit_rows(self) -> Tensor:
        return self.first.weight.square().sum(1) - 1

    def budget(self) -> Tensor:
        return self.second.weight.square().sum() - 1.5


# unit_rows and budget depend on parameters only; balance and class_loss on the batch.
STATIC = [False] * 5 + [True]
HYBRID = [*STATIC, False, True, True, True]


def registry(model: Net, *, batch: bool = True) -> ConstraintRegistry:
    constraints = ConstraintRegistry()
    constraints.equality("unit_rows", model.unit_rows)
    constraints.inequality("budget", model.budget)
    if batch:
        constraints.equality("balance", size=1)
        constraints.inequality("class_loss", size=3)
    return constraints


def batches() -> list[tuple[Tensor, Tensor]]:
    """Three batches of four; the last one lacks class 2."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(12, 4, generator=generator, dtype=F64)
    target = torch.tensor([0, 1, 2, 0, 2, 1, 0, 1, 0, 1, 1, 0])
    return list(zip(x.split(4), target.split(4), strict=True))


def measure(model: nn.Module, x: Tensor, target: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """The loss of a batch, and its batch blocks as augment() takes them."""
    logits = model(x)
    losses = cross_entropy(logits, target, reduction="none")
    one_hot = nn.functional.one_hot(target, 3).to(losses.dtype)
    count = one_hot.sum(0)
    class_loss = losses @ one_hot / count.clamp(min=1) - 0.9
    return losses.mean(), {
        "balance": logits[:, 0].mean() - 0.2,
        "class_loss": (class_loss, count),
    }


def flat(values: dict[str, Any]) -> Tensor:
    """The same blocks as the twin takes them; an absent class is 0."""
    class_loss, count = values["class_loss"]
    return torch.cat([values["balance"].reshape(1), torch.where(count > 0, class_loss, 0.0)])


def static(model: Net) -> Tensor:
    return torch.cat([model.unit_rows(), model.budget().reshape(1)])


class Average:
    """What an epoch has seen of the batch blocks, each entry weighted with its own count."""

    def __init__(self) -> None:
        self.total, self.weight = torch.zeros(4, dtype=F64), torch.zeros(4, dtype=F64)

    def add(self, values: dict[str, Any]) -> None:
        weight = torch.cat([torch.ones(1, dtype=F64), values["class_loss"][1]])
        self.total += flat(values).detach() * weight
        self.weight += weight

    def value(self) -> Tensor:
        return self.total / self.weight


def train_twin(
    model: Net, base: torch.optim.Optimizer, twin: Twin, *, epochs: int = 3, skip: int = -1
) -> None:
    """Differentiate loss + penalty in full; leave out the batch with index `skip`."""
    for _ in range(epochs):
        average = Average()
        for i, (x, target) in enumerate(batches()):
            if i == skip:
                continue
            base.zero_grad()
            loss, values = measure(model, x, target)
            (loss + twin.value(torch.cat([static(model), flat(values)]))).backward()
            base.step()
            average.add(values)
        twin.update(torch.cat([static(model), average.value()]))


def train(model: Net, optimizer: PowerALMOptimizer, *, epochs: int = 3) -> None:
    for _ in range(epochs):
        for x, target in batches():
            optimizer.zero_grad()
            loss, values = measure(model, x, target)
            optimizer.augment(loss, **values).backward()
            optimizer.step()
        optimizer.update_multipliers()


def constrained(
    base: torch.optim.Optimizer, constraints: ConstraintRegistry, **settings: Any
) -> PowerALMOptimizer:
    """An optimizer with the settings of the twin, whatever the defaults are."""
    return PowerALMOptimizer(base, constraints, **{"beta_1": 1.0, "omega": 1.1, **settings})


def multipliers(optimizer: PowerALMOptimizer) -> Tensor:
    return torch.cat(list(optimizer.state_dict()["powalm"]["y"].values()))


def assert_same(a: Any, b: Any, rtol: float = 1e-10) -> None:
    """Two implementations of one recursion: models or tensors."""
    pairs = (
        zip(a.parameters(), b.parameters(), strict=True) if isinstance(a, nn.Module) else [(a, b)]
    )
    for p, q in pairs:
        torch.testing.assert_close(p, q, rtol=rtol, atol=rtol / 100)


def two_nets() -> tuple[Net, Net]:
    return Net(), Net()


BASES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.02, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.02),
}
EACH_BASE = pytest.mark.parametrize("base", BASES.values(), ids=BASES)


@NU
@EACH_BASE
def test_parameter_only_blocks_equal_the_full_lagrangian(base, nu):
    ours, theirs = two_nets()
    optimizer = constrained(base(ours.parameters()), registry(ours, batch=False), nu=nu)
    plain, twin = base(theirs.parameters()), Twin(STATIC, nu)
    for _ in range(3):
        for x, target in batches():
            optimizer.zero_grad()
            measure(ours, x, target)[0].backward()
            optimizer.step()
            plain.zero_grad()
            (measure(theirs, x, target)[0] + twin.value(static(theirs))).backward()
            plain.step()
        optimizer.update_multipliers()
        twin.update(static(theirs))
        assert_same(ours, theirs)
        assert_same(multipliers(optimizer), twin.y)
    assert float(twin.y.norm()) > 0.1


@NU
@EACH_BASE
def test_blocks_of_every_kind_equal_the_full_lagrangian(base, nu):
    ours, theirs = two_nets()
    optimizer = constrained(base(ours.parameters()), registry(ours), nu=nu)
    twin = Twin(HYBRID, nu)
    train(ours, optimizer, epochs=4)
    train_twin(theirs, base(theirs.parameters()), twin, epochs=4)
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)
    assert optimizer.dual.beta == pytest.approx(twin.beta, rel=1e-12)


@NU
def test_block_coupling_equals_one_penalty_for_each_block(nu):
    ours, theirs = two_nets()
    optimizer = constrained(
        BASES["adam"](ours.parameters()), registry(ours), nu=nu, coupling="block"
    )
    train(ours, optimizer)
    plain = BASES["adam"](theirs.parameters())
    sizes = (5, 1, 1, 3)
    twins = [Twin(kinds.tolist(), nu) for kinds in torch.tensor(HYBRID).split(sizes)]
    for _ in range(3):
        average = Average()
        for x, target in batches():
            plain.zero_grad()
            loss, values = measure(theirs, x, target)
            parts = torch.cat([static(theirs), flat(values)]).split(sizes)
            (loss + sum(t.value(r) for t, r in zip(twins, parts, strict=True))).backward()
            plain.step()
            average.add(values)
        for t, r in zip(
            twins, torch.cat([static(theirs), average.value()]).split(sizes), strict=True
        ):
            t.update(r)
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), torch.cat([t.y for t in twins]))


def test_nu_one_with_inequalities_equals_the_classical_formula():
    """L = f + y·A + β/2‖A‖² + Σ (max(0, y + βB)² − y²)/(2β), and y ← max(0, y + βB)."""
    ours, theirs = two_nets()
    optimizer = constrained(BASES["sgd"](ours.parameters()), registry(ours, batch=False), nu=1.0)
    plain = BASES["sgd"](theirs.parameters())
    y_A, y_B, beta = torch.zeros(5, dtype=F64), torch.zeros(1, dtype=F64), 1.0
    x, target = batches()[0]
    for _ in range(4):
        for _ in range(3):
            optimizer.zero_grad()
            measure(ours, x, target)[0].backward()
            optimizer.step()
            plain.zero_grad()
            A, B = theirs.unit_rows(), theirs.budget()
            hinge = (y_B + beta * B).clamp(min=0).square() - y_B.square()
            penalty = y_A @ A + beta / 2 * A.square().sum() + hinge.sum() / (2 * beta)
            (measure(theirs, x, target)[0] + penalty).backward()
            plain.step()
        optimizer.update_multipliers()
        with torch.no_grad():
            y_A = y_A + beta * theirs.unit_rows()
            y_B = (y_B + beta * theirs.budget()).clamp(min=0)
        beta *= 1.1
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), torch.cat([y_A, y_B]))


@NU
def test_a_line_search_sees_the_value_of_the_full_lagrangian(nu):
    def lbfgs(model):
        return torch.optim.LBFGS(
            model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe"
        )

    ours, theirs = two_nets()
    optimizer, twin = constrained(lbfgs(ours), registry(ours), nu=nu), Twin(HYBRID, nu)
    plain = lbfgs(theirs)
    evaluations = 0
    for _ in range(2):
        average = Average()
        for x, target in batches():

            def closure(x=x, target=target):
                optimizer.zero_grad()
                loss, values = measure(ours, x, target)
                loss = optimizer.augment(loss, **values)
                loss.backward()
                return loss

            optimizer.step(closure)
            average.add(measure(theirs, x, target)[1])  # a step counts with its first point

            def full_closure(x=x, target=target):
                nonlocal evaluations
                evaluations += 1
                plain.zero_grad()
                loss, values = measure(theirs, x, target)
                total = loss + twin.value(torch.cat([static(theirs), flat(values)]))
                total.backward()
                return total

            plain.step(full_closure)
        optimizer.update_multipliers()
        twin.update(torch.cat([static(theirs), average.value()]))
    assert evaluations > 2 * 3 * 2  # it did search
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)


@NU
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("place", ["before forward", "before backward", "after step"])
def test_gradients_may_be_cleared_at_any_of_the_three_usual_places(place, set_to_none, nu):
    """Lightning clears them between forward and backward."""
    ours, theirs = two_nets()
    optimizer = constrained(BASES["adam"](ours.parameters()), registry(ours), nu=nu)
    for _ in range(2):
        for x, target in batches():
            if place == "before forward":
                optimizer.zero_grad(set_to_none)
            loss, values = measure(ours, x, target)
            loss = optimizer.augment(loss, **values)
            if place == "before backward":
                optimizer.zero_grad(set_to_none)
            loss.backward()
            optimizer.step()
            if place == "after step":
                optimizer.zero_grad(set_to_none)
        optimizer.update_multipliers()
    twin = Twin(HYBRID, nu)
    train_twin(theirs, BASES["adam"](theirs.parameters()), twin, epochs=2)
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)


@pytest.mark.parametrize("place", ["before forward", "before backward"])
def test_a_closure_given_to_step_equals_the_plain_order(place):
    """Lightning's automatic optimization runs forward, zero_grad and backward inside step()."""
    ours, theirs = two_nets()
    optimizer = constrained(BASES["adam"](ours.parameters()), registry(ours), nu=0.7)
    for _ in range(2):
        for x, target in batches():

            def closure(x=x, target=target):
                if place == "before forward":
                    optimizer.zero_grad()
                loss, values = measure(ours, x, target)
                loss = optimizer.augment(loss, **values)
                if place == "before backward":
                    optimizer.zero_grad()
                loss.backward()
                return loss

            expected = measure(ours, x, target)[0].item()
            assert optimizer.step(closure).item() == expected  # the user's own loss
        optimizer.update_multipliers()
    twin = Twin(HYBRID, 0.7)
    train_twin(theirs, BASES["adam"](theirs.parameters()), twin, epochs=2)
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)


@NU
@pytest.mark.parametrize("total", [False, True], ids=["loss only", "total"])
def test_clipping_takes_the_loss_or_with_backward_constraints_the_total(total, nu):
    ours, theirs = two_nets()
    optimizer = constrained(BASES["sgd"](ours.parameters()), registry(ours), nu=nu)
    plain, twin = BASES["sgd"](theirs.parameters()), Twin(HYBRID, nu)
    for x, target in batches():
        optimizer.zero_grad()
        loss, values = measure(ours, x, target)
        optimizer.augment(loss, **values).backward()
        if total:
            optimizer.backward_constraints()
        assert clip_grad_norm_(ours.parameters(), 0.1) > 0.2  # it does clip
        optimizer.step()

        plain.zero_grad()
        loss, values = measure(theirs, x, target)
        # The batch blocks come with the loss; the others join before or after the clip.
        A_static, A_batch = static(theirs), flat(values)
        (loss + twin.value(torch.cat([A_static.detach(), A_batch]))).backward()
        if not total:
            clip_grad_norm_(theirs.parameters(), 0.1)
        twin.value(torch.cat([A_static, A_batch.detach()])).backward()
        if total:
            clip_grad_norm_(theirs.parameters(), 0.1)
        plain.step()
    assert_same(ours, theirs)


@NU
def test_a_step_skipped_by_the_scaler_leaves_no_trace(nu):
    ours, theirs = two_nets()
    optimizer = constrained(BASES["adam"](ours.parameters()), registry(ours), nu=nu)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
    for _ in range(3):
        for i, (x, target) in enumerate(batches()):
            optimizer.zero_grad()
            loss, values = measure(ours, x, target)
            loss = scaler.scale(optimizer.augment(loss, **values))
            (loss * math.inf if i == 1 else loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert optimizer.steps == 2
        optimizer.update_multipliers()
    twin = Twin(HYBRID, nu)
    train_twin(theirs, BASES["adam"](theirs.parameters()), twin, skip=1)
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)


def whole_step(model: Net, base: torch.optim.Optimizer, twin: Twin) -> None:
    """One step with the full batch, as gradient accumulation should be."""
    base.zero_grad()
    losses, average = [], []
    for x, target in batches():
        loss, values = measure(model, x, target)
        losses.append(loss)
        average.append(values)
    count = torch.stack([v["class_loss"][1] for v in average])
    class_loss = torch.stack([v["class_loss"][0] for v in average])
    r = torch.cat(
        [
            static(model),
            torch.stack([v["balance"] for v in average]).mean().reshape(1),
            (class_loss * count).sum(0) / count.sum(0),
        ]
    )
    (sum(losses) / len(losses) + twin.value(r)).backward()
    base.step()


@NU
def test_accumulation_with_a_window_equals_the_full_batch(nu):
    ours, theirs = two_nets()
    optimizer = constrained(BASES["adam"](ours.parameters()), registry(ours), nu=nu)
    plain, twin = BASES["adam"](theirs.parameters()), Twin(HYBRID, nu)
    for _ in range(4):
        with torch.no_grad():
            window = [measure(ours, x, target)[1] for x, target in batches()]
        optimizer.zero_grad()
        for x, target in batches():
            loss, values = measure(ours, x, target)
            (optimizer.augment(loss, window=window, **values) / len(window)).backward()
        optimizer.step()
        whole_step(theirs, plain, twin)
        assert_same(ours, theirs)
    assert optimizer.steps == 4


@NU
def test_accumulation_without_a_window_weighs_every_micro_batch_by_its_own_violation(nu):
    ours, theirs = two_nets()
    optimizer = constrained(torch.optim.SGD(ours.parameters(), 0.05), registry(ours), nu=nu)
    optimizer.zero_grad()
    for x, target in batches():
        loss, values = measure(ours, x, target)
        (optimizer.augment(loss, **values) / 3).backward()
    optimizer.step()

    plain, twin, average = torch.optim.SGD(theirs.parameters(), 0.05), Twin(HYBRID, nu), Average()
    A_static = static(theirs)
    for x, target in batches():
        loss, values = measure(theirs, x, target)
        average.add(values)
        ((loss + twin.value(torch.cat([A_static.detach(), flat(values)]))) / 3).backward()
    twin.value(torch.cat([A_static, average.value()])).backward()  # once, whatever the window
    plain.step()
    assert_same(ours, theirs)

    exact = Net()
    whole_step(exact, torch.optim.SGD(exact.parameters(), 0.05), Twin(HYBRID, nu))
    bias = (ours.second.weight - exact.second.weight).detach().norm()
    assert bias > 1e-4  # what the window is for


def test_a_micro_batch_whose_gradient_is_zero_counts_in_the_epoch():
    """As with a hinge that all samples have passed, and an inactive constraint."""
    p = nn.Parameter(torch.tensor([2.0], dtype=F64))
    constraints = ConstraintRegistry()
    constraints.inequality("hinge", size=1)
    optimizer = constrained(torch.optim.SGD([p], lr=0.1), constraints, nu=1.0)
    for x in (-3.0, 4.0):
        (optimizer.augment((p * x).relu().sum(), hinge=p * x) / 2).backward()
    optimizer.step()
    record = optimizer.update_multipliers()
    assert record.violations["hinge"].max == pytest.approx((-6 + 8) / 2, rel=1e-12)


def test_a_window_is_exact_for_statistics_too():
    x, _ = batches()[0]
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=F64)

    def statistics(model, rows):
        return torch.stack([(model(x[rows])[:, 0] * weights[rows]).sum(), weights[rows].sum()])

    grads = []
    for parts in ([slice(0, 4)], [slice(0, 1), slice(1, 4)]):
        model = Net()
        constraints = ConstraintRegistry()
        constraints.equality("rate", size=1, from_statistics=lambda s: s[:1] / s[1:] - 0.3)
        optimizer = constrained(torch.optim.SGD(model.parameters(), 0.1), constraints, nu=0.5)
        with torch.no_grad():
            window = [{"rate": statistics(model, rows)} for rows in parts]
        for rows in parts:
            loss = model.second.weight.sum() * 0
            loss = optimizer.augment(loss, window=window, rate=statistics(model, rows))
            (loss / len(parts)).backward()
        grads.append(model.second.weight.grad)
        optimizer.step()
        assert_same(
            constraints.epoch["rate"].total,
            sum((w["rate"] for w in window), torch.zeros(2, dtype=F64)),
        )
    assert float(grads[0].norm()) > 0.1
    assert_same(grads[1], grads[0])


def test_a_parameter_only_block_enters_once_whatever_the_accumulation():
    """Four micro-batches of the same data, each a quarter of the loss."""
    model, once = two_nets()
    x, target = batches()[0]
    for net, parts in ((model, 4), (once, 1)):
        optimizer = constrained(
            torch.optim.SGD(net.parameters(), 0.1), registry(net, batch=False), nu=0.7
        )
        for _ in range(parts):
            (measure(net, x, target)[0] / parts).backward()
        optimizer.step()
    assert_same(model, once)


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


def small(
    *names: str, on: nn.Parameter | None = None, **settings: Any
) -> tuple[nn.Parameter, ConstraintRegistry, PowerALMOptimizer]:
    """A parameter of three entries with batch blocks of three entries."""
    p = on if on is not None else nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=F64))
    constraints = ConstraintRegistry()
    for name in names:
        constraints.equality(name, size=3)
    base = torch.optim.SGD([p], lr=0.1, momentum=0.9)
    return p, constraints, constrained(base, constraints, **settings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rate": "p"}, "augment must have a value of 'recall', got none"),
        ({}, "augment must have a value of 'rate', got none"),
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
            "window must have a value of 'recall', got none",
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
    assert constraints.epoch["rate"].weight == 1


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


@pytest.mark.parametrize("end", ["step", "discard", "no grad"])
def test_no_graph_is_kept_alive(end):
    model, refs = Net(), []

    def remember(value):
        refs.append(weakref.ref(value))
        return value

    constraints = ConstraintRegistry()
    constraints.equality("unit_rows", lambda: remember(model.unit_rows()))
    constraints.equality("balance", size=1)
    optimizer = constrained(BASES["adam"](model.parameters()), constraints, nu=0.7)
    for x, _ in batches():
        optimizer.zero_grad()
        with torch.set_grad_enabled(end != "no grad"):
            activation = remember(model(x))
            loss = optimizer.augment(activation.square().mean(), balance=activation[:, 0].mean())
        if end == "step":
            loss.backward()
            optimizer.step()
        del activation, loss
    gc.collect()
    assert len(refs) >= 4
    assert all(ref() is None for ref in refs)


def test_memory_does_not_grow_with_the_number_of_steps():
    """Tensors alive after ten epochs are as many as after two."""
    model = Net()
    optimizer = constrained(BASES["adam"](model.parameters()), registry(model), nu=0.7)

    def alive() -> int:
        gc.collect()
        return sum(issubclass(type(o), Tensor) for o in gc.get_objects())

    train(model, optimizer, epochs=2)
    after_two = alive()
    train(model, optimizer, epochs=8)
    assert alive() <= after_two


def test_an_absent_class_neither_pulls_nor_counts():
    """Its value may even be nan, as the mean over no samples is."""
    p = nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=F64))
    constraints = ConstraintRegistry()
    constraints.equality("mean", size=3)
    optimizer = constrained(torch.optim.SGD([p], lr=0.0), constraints, nu=1.0, omega=1.0)
    seen = [([0, 0, 1], [10.0, 20.0, 30.0]), ([1, 1, 1], [1.0, 2.0, 4.0])]
    for target, x in seen:
        target, x = torch.tensor(target), torch.tensor(x, dtype=F64)
        values = torch.stack([(p[c] * x[target == c]).mean() for c in range(3)])
        count = torch.bincount(target, minlength=3)
        assert values[2].isnan()
        optimizer.zero_grad()
        optimizer.augment(0 * p.sum(), mean=(values, count)).backward()
        assert p.grad[2] == 0
        assert (p.grad != 0).tolist() == (count > 0).tolist()
        optimizer.step()
    assert constraints.violations()["mean"].max == pytest.approx(2 * 37 / 4, rel=1e-12)
    optimizer.update_multipliers()
    # Class 0 was seen twice, in the first batch only; class 1 four times over both.
    assert_same(multipliers(optimizer), torch.tensor([15.0, 2 * 37 / 4, 0.0], dtype=F64))


def test_a_class_that_an_epoch_has_not_seen_keeps_its_multiplier():
    p, _, optimizer = small("mean", nu=0.5, omega=1.0)
    for count in ([1, 1, 1], [1, 1, 0]):
        optimizer.zero_grad()
        optimizer.augment(p.sum(), mean=(p * 1, torch.tensor(count))).backward()
        optimizer.step()
        optimizer.update_multipliers()
        if count[2]:
            first = multipliers(optimizer)
    assert multipliers(optimizer)[2] == first[2] != 0
    assert (multipliers(optimizer)[:2] != first[:2]).all()


def test_gradients_come_from_the_proxy_and_multipliers_from_the_strict_value():
    p, constraints, optimizer = small("rate", nu=1.0, omega=1.0)
    start = p.detach().clone()
    optimizer.augment(0 * p.sum(), rate=2 * p, strict={"rate": torch.full((3,), 7.0)}).backward()
    assert_same(p.grad, 4 * start)  # J = 2, w = y + β·2p
    optimizer.step()
    assert constraints.violations()["rate"].max == 7.0
    record = optimizer.update_multipliers()
    assert multipliers(optimizer).tolist() == [7.0] * 3
    assert record.violations["rate"].max == 7.0
    assert record.primal_residual == pytest.approx(7 * math.sqrt(3), rel=1e-12)


def test_a_buffer_given_as_strict_value_may_be_reused_for_the_next_batch():
    p, _, optimizer = small("rate", nu=1.0)
    buffer = torch.empty(3, dtype=F64)
    for value in (1.0, 5.0):
        buffer.fill_(value)
        optimizer.zero_grad()
        optimizer.augment(p.sum(), rate=p * 1, strict={"rate": buffer}).backward()
        optimizer.step()
    optimizer.update_multipliers()
    assert multipliers(optimizer).tolist() == [3.0] * 3


def test_a_rate_is_a_function_of_the_sums_and_not_a_mean_of_rates():
    p = nn.Parameter(torch.tensor(0.5, dtype=F64))
    constraints = ConstraintRegistry()
    constraints.equality("rate", size=1, from_statistics=lambda s: s[:1] / s[1:] - 0.1)
    optimizer = constrained(torch.optim.SGD([p], lr=0.0), constraints, nu=1.0, omega=1.0)
    for hits, n in ((1.0, 10.0), (30.0, 40.0)):
        optimizer.zero_grad()
        statistics = torch.stack([hits * p, torch.tensor(n, dtype=F64)])
        optimizer.augment(0 * p, rate=statistics).backward()
        rate = hits * 0.5 / n - 0.1
        assert p.grad.item() == pytest.approx(rate * hits / n, rel=1e-12)
        optimizer.step()
    optimizer.update_multipliers()
    assert multipliers(optimizer).item() == pytest.approx(0.5 * 31 / 50 - 0.1, rel=1e-12)


def test_statistics_that_change_their_number_raise_before_anything_moves():
    p = nn.Parameter(torch.tensor([1.0, 2.0], dtype=F64))
    constraints = ConstraintRegistry()
    constraints.equality("rate", size=1, from_statistics=lambda s: s[:1] / s[1:2])
    optimizer = constrained(torch.optim.SGD([p], lr=0.1), constraints, nu=1.0)
    optimizer.augment(p.sum(), rate=p * 1).backward()
    optimizer.step()
    before = p.detach().clone()
    optimizer.zero_grad()
    optimizer.augment(p.sum(), rate=torch.cat([p, p])).backward()
    with pytest.raises(ValueError, match="statistics must have 2 entries as before, got 4"):
        optimizer.step()
    assert_same(p.detach(), before)
    assert optimizer.steps == 1


@pytest.mark.parametrize("samples", [(30, 10), (30.0, 10.0), (1, 3)])
def test_batches_weigh_in_the_epoch_by_their_samples(samples):
    p, _, optimizer = small("rate", nu=1.0)
    for value, n in zip((1.0, 2.0), samples, strict=True):
        optimizer.zero_grad()
        optimizer.augment(
            p.sum(), rate=p * 1, strict={"rate": torch.full((3,), value)}, samples=n
        ).backward()
        optimizer.step()
    optimizer.update_multipliers()
    expected = (samples[0] + 2 * samples[1]) / sum(samples)
    assert_same(multipliers(optimizer), torch.full((3,), expected, dtype=F64), rtol=1e-12)


def test_the_samples_of_a_batch_do_not_change_its_gradient():
    grads = []
    for samples in (1.0, 17.0):
        p, _, optimizer = small("rate", nu=0.4)
        optimizer.augment(p.sum(), rate=p.square(), samples=samples).backward()
        grads.append(p.grad)
    assert_same(grads[0], grads[1], rtol=1e-12)


def test_exact_values_at_the_update_replace_what_the_epoch_has_seen():
    p, _, optimizer = small("rate", nu=1.0)
    optimizer.augment(p.sum(), rate=p * 1).backward()
    optimizer.step()
    optimizer.update_multipliers(rate=torch.tensor([4.0, 5.0, 6.0], dtype=F64))
    assert multipliers(optimizer).tolist() == [4.0, 5.0, 6.0]


def test_a_feasibility_problem_needs_no_loss():
    """The loss is a constant; the constraint alone has a gradient."""
    p, _, optimizer = small("rate", nu=1.0)
    start = p.detach().clone()
    loss = optimizer.augment(torch.zeros((), dtype=F64), rate=p - 1)
    loss.backward()
    assert_same(p.grad, start - 1)
    optimizer.step()
    assert optimizer.steps == 1


def test_a_block_may_be_the_parameter_itself():
    p = nn.Parameter(torch.tensor([1.0, -2.0], dtype=F64))
    constraints = ConstraintRegistry()
    constraints.equality("zero", lambda: p)
    optimizer = constrained(torch.optim.SGD([p], lr=0.25), constraints, nu=1.0)
    for _ in range(2):
        optimizer.zero_grad()
        optimizer.step()
    assert_same(p.detach(), 0.75**2 * torch.tensor([1.0, -2.0], dtype=F64))
    optimizer.update_multipliers()
    assert_same(multipliers(optimizer), p.detach())


def test_two_parameters_never_share_a_gradient():
    """Autograd may hand the same tensor to both summands."""
    p, q = (nn.Parameter(torch.ones(2, dtype=F64)) for _ in range(2))
    constraints = ConstraintRegistry()
    constraints.equality("sum", lambda: p + q)
    optimizer = constrained(torch.optim.SGD([p, q], lr=0.1), constraints)
    optimizer.backward_constraints()
    q_grad = q.grad.clone()
    p.grad.add_(1)
    assert_same(q.grad, q_grad)


def test_a_step_after_backward_constraints_does_not_add_them_again():
    model = Net()
    optimizer = constrained(
        torch.optim.SGD(model.parameters(), 0.1), registry(model, batch=False), nu=1.0
    )
    for _ in range(2):
        with torch.no_grad():
            expected = 2 * model.unit_rows()[:, None] * model.first.weight
        optimizer.zero_grad()
        optimizer.backward_constraints()
        assert_same(model.first.weight.grad, expected)
        optimizer.step()
        assert_same(model.first.weight.grad, expected)


def test_backward_constraints_adds_once_where_its_first_gradient_is_zero():
    p, q = (nn.Parameter(torch.tensor([value], dtype=F64)) for value in (0.0, 1.0))
    constraints = ConstraintRegistry()
    constraints.equality("sum", lambda: p.square() + q)
    optimizer = constrained(torch.optim.SGD([p, q], 0.1), constraints, nu=1.0)
    optimizer.backward_constraints()
    assert (p.grad.item(), q.grad.item()) == (0.0, 1.0)
    optimizer.step()
    assert q.grad.item() == 1.0


def test_the_total_gradient_may_be_replaced_before_the_step():
    """Not every clip works in place."""
    model = Net()
    optimizer = constrained(
        torch.optim.SGD(model.parameters(), 1.0), registry(model, batch=False), nu=0.7
    )
    start = model.first.weight.detach().clone()
    measure(model, *batches()[0])[0].backward()
    optimizer.backward_constraints()
    for p in model.parameters():
        p.grad = p.grad.clamp(-0.01, 0.01)
    optimizer.step()
    moved = (model.first.weight.detach() - start).abs().max()
    assert moved.item() == pytest.approx(0.01, rel=1e-10)


def test_clearing_gradients_after_backward_constraints_makes_the_next_step_add_them():
    model = Net()
    optimizer = constrained(
        torch.optim.SGD(model.parameters(), 0.1), registry(model, batch=False), nu=1.0
    )
    optimizer.backward_constraints()
    expected = model.first.weight.grad
    optimizer.zero_grad()
    optimizer.step()
    assert_same(model.first.weight.grad, expected)


def test_a_step_without_gradient_mode_is_the_same_step():
    model, other = two_nets()
    for net, enabled in ((model, False), (other, True)):
        optimizer = constrained(BASES["adam"](net.parameters()), registry(net), nu=0.7)
        loss, values = measure(net, *batches()[0])
        optimizer.augment(loss, **values).backward()
        with torch.set_grad_enabled(enabled):
            optimizer.step()
    assert_same(model, other)


@pytest.mark.parametrize("clear", ["optimizer", "model"])
def test_clearing_the_gradients_of_a_skipped_batch_clears_the_batch(clear):
    """The scaler skips the first batch, so the epoch is the second one."""
    p, _, optimizer = small("rate", nu=1.0)
    cleared = {"optimizer": optimizer, "model": nn.ParameterList([p])}[clear]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for factor, shift in ((math.inf, 100.0), (1.0, -1.0)):
        cleared.zero_grad()
        loss = optimizer.augment(p.sum(), rate=p + shift)
        scaler.scale(factor * loss).backward()
        scaler.step(optimizer)
        scaler.update()
    optimizer.update_multipliers()
    assert multipliers(optimizer).tolist() == [0.0, 1.0, 2.0]
