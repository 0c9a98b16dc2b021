"""Warnings about trainings that will not meet their constraints, and silence in healthy ones."""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from torch_powalm import ConstraintRegistry, ConstraintWarning, PowerALMOptimizer
from torch_powalm.training.update_window import UPDATES, UpdateWindow


class Classifier:
    """A small classifier of four noisy classes, and one of the constraints below."""

    def __init__(self, constraint, seed):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        self.x = torch.randn(600, 8)
        self.target = (self.x[:, :4] + 0.5 * torch.randn(600, 4)).argmax(1)
        self.constraints = ConstraintRegistry()
        self.values = getattr(self, constraint)() or (lambda logits, target: {})

    def unit_rows(self):
        self.constraints.equality("rows", lambda: self.model[0].weight.square().sum(1) - 1)

    def budget(self):
        self.constraints.inequality("budget", lambda: self.model[2].weight.abs().sum() - 4)
        self.constraints.inequality("loose", lambda: self.model[0].weight.norm() - 100)

    def class_losses(self, bound=0.6):
        self.constraints.inequality("class_loss", size=4)

        def values(logits, target):
            member = one_hot(target, 4).float()
            count = member.sum(0)
            sums = cross_entropy(logits, target, reduction="none") @ member
            return {"class_loss": (sums / count.clamp(min=1) - bound, count)}

        return values

    def rate(self):
        self.constraints.inequality("missed", size=1, from_statistics=lambda s: s[:1] / s[1:] - 0.3)

        def values(logits, target):
            positive = target == 1
            missed = torch.sigmoid(-logits[positive, 1]).sum()
            return {"missed": torch.stack([missed, positive.sum().float()])}

        return values

    def several(self):
        self.unit_rows()
        return self.class_losses()

    def low_and_high(self):
        self.constraints.inequality("low", lambda: self.model[2].bias.sum() + 1)
        self.constraints.inequality("high", lambda: 1 - self.model[2].bias.sum())

    def two_entries(self):
        total = lambda: self.model[2].bias.sum()  # noqa: E731
        self.constraints.inequality("both", lambda: torch.stack([total() + 1, 1 - total()]))

    def accurate_and_tiny(self):
        self.constraints.inequality("tiny", lambda: self.model[0].weight.abs().sum() - 1)
        return self.class_losses(bound=0.2)

    def train(self, steps, base, lr, decay=True, **settings):
        optimizer = PowerALMOptimizer(
            base(self.model.parameters(), lr=lr), self.constraints, **settings
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for k in range(steps):
            rows = torch.randint(0, 600, (64,))
            x, target = self.x[rows], self.target[rows]
            optimizer.zero_grad()
            logits = self.model(x)
            loss, values = cross_entropy(logits, target), self.values(logits, target)
            (optimizer.augment(loss, **values) if values else loss).backward()
            optimizer.step()
            if decay:
                schedule.step()
            if (k + 1) % (steps // 10) == 0:
                optimizer.update_multipliers()
        return optimizer


def names_of(signals):
    return {signal.split(":")[0] for signal in signals}


HEALTHY = [
    ("unit_rows", 600, torch.optim.Adam, 3e-3, {}),
    ("unit_rows", 600, torch.optim.Adam, 3e-3, {"total_steps": 600}),
    ("budget", 600, torch.optim.Adam, 1e-2, {"total_steps": 600}),
    ("budget", 200, torch.optim.Adam, 1e-2, {"total_steps": 200}),  # a short run
    ("budget", 600, torch.optim.SGD, 5e-2, {"total_steps": 600}),
    ("class_losses", 600, torch.optim.Adam, 1e-2, {"total_steps": 600}),
    ("class_losses", 600, torch.optim.Adam, 1e-2, {"beta_1": 1.0, "nu": 1.0}),
    ("rate", 300, torch.optim.Adam, 1e-2, {"total_steps": 300}),
    ("rate", 600, torch.optim.SGD, 5e-2, {}),
    ("several", 600, torch.optim.Adam, 3e-3, {}),
]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("constraint", "steps", "base", "lr", "settings"), HEALTHY)
def test_a_healthy_training_gives_no_warning(constraint, steps, base, lr, settings, seed):
    optimizer = Classifier(constraint, seed).train(steps, base, lr, **settings)  # or it raises
    assert len(optimizer.history) >= 10
    assert [row.record.signals for row in optimizer.history] == [()] * len(optimizer.history)


CONFLICTS = [
    ("low_and_high", ("low", "high"), True),
    ("two_entries", ("both",), True),
    ("accurate_and_tiny", ("tiny", "class_loss"), False),  # both fall at first
]


@pytest.mark.parametrize("base", [torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize(("constraint", "names", "decay"), CONFLICTS)
def test_constraints_that_contradict_each_other_are_named_once(constraint, names, decay, base):
    quoted = ", ".join(map(repr, names))
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        steps = 600 if decay else 1000
        optimizer = Classifier(constraint, 0).train(steps, base, 1e-2, decay, total_steps=steps)
    messages = [str(w.message) for w in given if w.category is ConstraintWarning]
    assert len(messages) == 1
    assert messages[0].startswith(f"constraints in {quoted} contradict each other")
    assert optimizer.history[-1].record.signals == (f"conflicting: {', '.join(names)}",)
    assert {block.status for block in optimizer.report()} == {"conflicting"}


def test_a_contradiction_is_also_found_with_given_numbers():
    with pytest.warns(ConstraintWarning, match="constraints in 'low', 'high' contradict"):
        # Without measured units, a conflict is told from a slow start by its rest: it takes longer.
        Classifier("low_and_high", 0).train(900, torch.optim.Adam, 1e-2, beta_1=1.0, updates=20)


def test_a_violation_that_stays_because_the_learning_rate_is_gone_is_no_contradiction():
    task = Classifier("class_losses", 0)
    task.train(600, torch.optim.Adam, 1e-4, total_steps=600)  # too small from the start
    optimizer = Classifier("several", 1).train(600, torch.optim.Adam, 1e-3, total_steps=600)
    assert not optimizer.report().feasible


def pulled(beta_1, steps=300, scale=1.0):
    """Train min (x − 3)² under x ≤ 1 with a given penalty."""
    x = nn.Parameter(torch.tensor([0.0]))
    constraints = ConstraintRegistry()
    constraints.inequality("bound", lambda: scale * (x - 1))
    optimizer = PowerALMOptimizer(
        torch.optim.SGD([x], 0.02), constraints, nu=1.0, beta_1=beta_1, sigma="paper", sigma_1=0.0
    )
    for k in range(steps):
        optimizer.zero_grad()
        (x - 3).square().sum().backward()
        x.grad += (-1) ** k  # the noise of a batch
        optimizer.step()
        if k % 10 == 9:
            optimizer.update_multipliers()
    return optimizer


def test_a_pull_far_below_that_of_the_loss_is_noticed():
    with pytest.warns(ConstraintWarning, match="constraints 'bound' stay violated, and their pull"):
        optimizer = pulled(1e-6)
    assert optimizer.history[-1].record.signals == ("weak: bound",)


def test_a_block_that_nothing_moved_while_units_were_measured_is_weak():
    x = nn.Parameter(torch.tensor([2.0, 0.0]))
    constraints = ConstraintRegistry()
    constraints.inequality("dead", lambda: 1 + x[0].clamp(max=1.0).reshape(1))
    optimizer = PowerALMOptimizer(torch.optim.Adam([x], 1e-3), constraints, total_steps=400)

    def train():
        for _ in range(400):
            optimizer.zero_grad()
            (x[1] - 5).square().backward()
            optimizer.step()

    with pytest.warns(ConstraintWarning, match="constraints 'dead' stay violated"):
        train()


def chase(sigma_1, beta_1=0.1):
    """Find x = 1 with momentum and an integral gain."""
    x = nn.Parameter(torch.tensor([0.5], dtype=torch.float64))
    constraints = ConstraintRegistry()
    constraints.equality("pinned", lambda: x - 1)
    base = torch.optim.SGD([x], 0.01, momentum=0.9)
    optimizer = PowerALMOptimizer(
        base, constraints, nu=1.0, beta_1=beta_1, sigma="pi", sigma_1=sigma_1, updates=10
    )
    for _ in range(300):
        optimizer.zero_grad()
        (0.01 * x.square().sum()).backward()
        optimizer.step()
    return optimizer


def test_an_oscillation_is_noticed():
    with pytest.warns(ConstraintWarning, match="constraints 'pinned' oscillate around"):
        optimizer = chase(sigma_1=2.0)
    assert optimizer.history[-1].record.signals == ("oscillating: pinned",)
    chase(sigma_1=0.05, beta_1=1.0)


def series(values, inequality=False, y=1.0):
    window = UpdateWindow({"b": 1}, torch.tensor([True]) if inequality else None)
    for value in values:
        r = torch.tensor([value])
        window.add(r, r.clamp(min=0) if inequality else r, torch.tensor([y]), torch.ones(1))
    return window


@pytest.mark.parametrize("period", [2, 3, 4, 5.5, 7])
def test_swings_of_every_period_are_oscillations_unless_they_are_damped(period):
    swing = [math.cos(2 * math.pi * k / period + 0.3) for k in range(UPDATES)]
    growing = [value * 1.02**k for k, value in enumerate(swing)]
    damped = [value * 0.9**k for k, value in enumerate(swing)]
    assert series(growing).oscillates("b", 1e-2)
    assert series(growing, inequality=True).oscillates("b", 1e-2)
    assert not series(growing, inequality=True, y=0.0).oscillates("b", 1e-2)  # inactive
    assert not series(growing[:-1]).oscillates("b", 1e-2)
    assert not series(damped).oscillates("b", 1e-2)
    assert not series(growing).oscillates("b", 1.0)  # within tolerance


def test_noise_is_hardly_ever_an_oscillation():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(1000, UPDATES, generator=generator)
    found = sum(series(row.tolist()).oscillates("b", 1e-2) for row in noise)
    assert found <= 10  # 1 %


def loop(steps, updates_every=None, **settings):
    x = nn.Parameter(torch.tensor([1.0]))
    constraints = ConstraintRegistry()
    constraints.equality("zero", lambda: x)
    optimizer = PowerALMOptimizer(torch.optim.SGD([x], 1e-3), constraints, **settings)
    for k in range(steps):
        optimizer.step()
        if updates_every and (k + 1) % updates_every == 0:
            optimizer.update_multipliers()
    return optimizer


def test_a_loop_without_updates_is_noticed():
    with pytest.warns(ConstraintWarning, match="multipliers of 'zero' have not moved for 2000"):
        optimizer = loop(2100, beta_1=1.0)
    assert optimizer.update_multipliers().signals == ("idle: zero",)
    assert optimizer.update_multipliers().signals == ()
    loop(1999, beta_1=1.0)
    loop(4500, 1500, beta_1=1.0)
    loop(2100, beta_1=1.0, updates=500)


def test_a_short_loop_without_updates_is_noticed_halfway_and_in_a_report():
    with pytest.warns(ConstraintWarning, match="multipliers of 'zero' have not moved for 50 steps"):
        loop(51, beta_1=1.0, total_steps=100)
    loop(99, 49, beta_1=1.0, total_steps=490)
    optimizer = loop(51, beta_1=1.0)
    with pytest.warns(ConstraintWarning, match="multipliers of 'zero' have not moved for 51 steps"):
        optimizer.report()
    optimizer.report()  # told once
    loop(51, 50, beta_1=1.0).report()
    loop(51, beta_1=1.0, updates=100).report()


def test_long_epochs_are_no_reason_to_warn_again():
    with pytest.warns(ConstraintWarning, match="have not moved") as given:
        loop(9000, 3000, beta_1=1.0)
    assert len(given) == 1


@pytest.mark.parametrize("settings", [{"updates": 11}, {"updates": "auto", "beta_1": None}])
def test_too_few_updates_are_noticed_at_the_first_step(settings):
    total = 100 if settings["updates"] == 11 else 45
    settings = {"beta_1": 1.0, "total_steps": total, **settings}
    expected = f"multipliers of 'zero' move fewer than 10 times in a run of {total} steps"
    with pytest.warns(ConstraintWarning, match=expected):
        loop(1, **settings)


def test_too_few_updates_by_hand_are_noticed_at_the_end():
    with pytest.warns(ConstraintWarning, match="fewer than 10 times in a run of 90 steps"):
        loop(90, 15, beta_1=1.0, total_steps=90)
    loop(90, 9, beta_1=1.0, total_steps=90)  # ten, the last of them after the last step
    loop(90, 15, beta_1=1.0)  # the length is not known
    loop(1, beta_1=1.0, updates=10, total_steps=100)


def augmented(steps, calls, use, step=True):
    x = nn.Parameter(torch.tensor([1.0]))
    constraints = ConstraintRegistry()
    constraints.inequality("batch", size=1)
    optimizer = PowerALMOptimizer(torch.optim.SGD([x], 1e-3), constraints, beta_1=1.0)
    for _ in range(steps):
        optimizer.zero_grad()
        use([optimizer.augment(x.sum(), batch=x - 2) for _ in range(calls)])
        if step:
            optimizer.step()
    return optimizer


def test_results_of_augment_that_are_not_used_are_noticed():
    with pytest.warns(ConstraintWarning, match=r"augment\(\) was called for 'batch' without"):
        augmented(10, 2, lambda losses: losses[-1].backward())
    with pytest.warns(ConstraintWarning, match=r"augment\(\) was called for 'batch' without"):
        augmented(101, 1, lambda losses: None, step=False)  # validation that forgot no_grad
    augmented(9, 2, lambda losses: losses[-1].backward())
    augmented(30, 3, lambda losses: [loss.backward() for loss in losses])  # accumulation
    augmented(30, 3, lambda losses: sum(losses).backward())


def test_a_loaded_state_starts_the_checks_again():
    optimizer = pulled_without_warning()
    other = pulled_without_warning(steps=0)
    other.load_state_dict(optimizer.state_dict())
    other.update_multipliers()
    assert len(other.monitor.signals._window.values) == 1


def pulled_without_warning(steps=50):
    return pulled(10.0, steps)


def test_many_entries_are_sampled_evenly():
    window = UpdateWindow({"few": 3, "many": 5000}, None)
    assert window.columns == {"few": slice(0, 3), "many": slice(3, 1003)}
    assert window.kept[:5].tolist() == [0, 1, 2, 3, 8]
    assert window.kept[-1] == 3 + 4995
