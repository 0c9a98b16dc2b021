"""With nothing set, a training does not depend on the units of the constraints or of the loss."""

import math
import statistics

import pytest
import torch
from torch import nn

from torch_powalm import ConstraintRegistry, PowerALMOptimizer
from torch_powalm.functional import norm
from torch_powalm.training.automatic_units import AutomaticUnits

pytestmark = pytest.mark.filterwarnings("ignore::torch_powalm.ConstraintWarning")
KINDS = ("static_equality", "static_inequality", "value", "counted", "rate")


def run(
    kinds,
    factor=1.0,
    loss_factor=1.0,
    *,
    steps=200,
    manual=False,
    base="adam",
    stop=None,
    resume=None,
    parts=1,
    **settings,
):
    """Train a small classifier; all blocks are multiplied by factor, the loss by loss_factor."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 4, generator=generator, dtype=torch.float64)
    target = (x[:, 0] + 0.5 * x[:, 1] > 0.4).double()
    group = (x[:, 2] > 1.2).double()
    first = torch.randn(5, 4, generator=generator, dtype=torch.float64) * 0.5
    second = torch.randn(1, 5, generator=generator, dtype=torch.float64) * 0.5
    W, v = nn.Parameter(first), nn.Parameter(second)
    constraints = ConstraintRegistry()
    if "static_equality" in kinds:
        constraints.equality("static_equality", lambda: factor * (W.square().sum(1) - 1))
    if "static_inequality" in kinds:
        constraints.inequality("static_inequality", lambda: factor * (v.abs().sum() - 0.5))
    if "value" in kinds:
        constraints.equality("value", size=1)
    if "counted" in kinds:
        constraints.inequality("counted", size=2)
    if "rate" in kinds:
        constraints.inequality(
            "rate", size=1, from_statistics=lambda s: factor * (s[:1] / s[1:2] - 0.3)
        )
    if base == "adam":
        inner = torch.optim.Adam([W, v], lr=1e-2, eps=0.0)
    else:
        inner = torch.optim.SGD([W, v], lr=1e-2 / loss_factor, momentum=0.9)
    optimizer = PowerALMOptimizer(inner, constraints, **{"total_steps": steps, **settings})
    if resume is not None:
        optimizer.load_state_dict(resume["optimizer"])
        W.data.copy_(resume["W"])
        v.data.copy_(resume["v"])
    begin = 0 if resume is None else resume["step"]
    for t in range(begin, steps if stop is None else stop):
        optimizer.zero_grad()
        for part in range(parts):
            rows = torch.arange(16 // parts) + 16 * (t % 4) + 16 // parts * part
            logits = (torch.tanh(x[rows] @ W.T) @ v.T).squeeze(1)
            each = nn.functional.binary_cross_entropy_with_logits(
                logits, target[rows], reduction="none"
            )
            values = {}
            if "value" in kinds:
                values["value"] = factor * (logits.mean() - 0.2).reshape(1)
            if "counted" in kinds:
                masks = torch.stack([group[rows], 1 - group[rows]])
                count = masks.sum(1)
                values["counted"] = (
                    factor * (masks @ each / count.clamp(min=1) - 0.5),
                    count,
                )
            if "rate" in kinds:
                chosen = torch.sigmoid(logits) * group[rows]
                values["rate"] = torch.stack([chosen.sum(), group[rows].sum()])
            loss = loss_factor * each.mean()
            if values:
                loss = optimizer.augment(loss, **values)
            (loss / parts).backward()
        if manual:
            optimizer.backward_constraints()
        optimizer.step()
        if t % 4 == 3:
            optimizer.update_multipliers()
    return optimizer, W.detach(), v.detach(), constraints


def difference(one, other):
    return norm(one - other) / norm(other)


@pytest.mark.parametrize(
    ("kinds", "manual", "length"),
    [
        *(((kind,), False, 200) for kind in KINDS),
        (KINDS, False, 200),
        (KINDS, True, 200),
        (KINDS, False, None),
    ],
)
def test_a_training_does_not_depend_on_units(kinds, manual, length):
    _, W, v, _ = run(kinds, manual=manual, total_steps=length)
    _, free, _, _ = run((kinds[0],), factor=0.0, total_steps=length)
    assert difference(free, W) > 1e-3  # the constraints matter
    for factor, loss_factor in [(1e-6, 1e6), (1e6, 1.0), (1.0, 1e-6)]:
        _, W_too, v_too, _ = run(kinds, factor, loss_factor, manual=manual, total_steps=length)
        assert difference(W_too, W) < 1e-6
        assert difference(v_too, v) < 1e-6


def test_the_inexactness_rule_does_not_depend_on_units():
    """Updates come at the same steps, whatever the units of constraint and loss."""
    found = {}
    for factor, loss_factor in ((1.0, 1.0), (1e-3, 1e4), (1e4, 1e-3)):
        x = nn.Parameter(torch.tensor([2.0, -1.0], dtype=torch.float64))
        constraints = ConstraintRegistry()
        constraints.equality("unit", lambda f=factor, x=x: f * (x.square().sum() - 1))
        base = torch.optim.Adam([x], lr=1e-2, eps=0.0)
        optimizer = PowerALMOptimizer(base, constraints, updates="epoch", total_steps=300)
        steps = []
        for t in range(300):
            optimizer.zero_grad()
            (loss_factor * (x - 1).square().sum()).backward()
            optimizer.step()
            if optimizer.should_update(lam=0.5):
                optimizer.update_multipliers()
                steps.append(t)
        found[factor] = steps
    assert found[1e-3] == found[1e4] == found[1.0]
    assert 3 <= len(found[1.0]) < 250
    assert found[1.0][0] >= 20  # not before the units are known


def test_sgd_does_not_depend_on_the_units_of_constraints():
    _, W, _, _ = run(KINDS, base="sgd")
    for factor in (1e-6, 1e6):
        _, W_too, _, _ = run(KINDS, factor, base="sgd")
        assert difference(W_too, W) < 1e-6


def test_reports_and_prices_are_in_the_users_units():
    optimizer, _, _, constraints = run(("static_equality",))
    scaled, _, _, others = run(("static_equality",), factor=1e3, loss_factor=10.0)
    assert torch.allclose(scaled.dual.y, optimizer.dual.y * 10 / 1e3, rtol=1e-6)
    ours, theirs = constraints.violations(), others.violations()
    assert theirs["static_equality"].max == pytest.approx(
        1e3 * ours["static_equality"].max, rel=1e-4
    )


@pytest.mark.parametrize("stop", [7, 20, 23, 120])
def test_a_resume_in_or_after_the_measuring_steps_is_exact(stop, tmp_path):
    _, W, v, _ = run(KINDS)
    half, W_half, v_half, _ = run(KINDS, stop=stop)
    torch.save(half.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    saved = {"optimizer": state, "W": W_half, "v": v_half, "step": stop}
    _, W_too, v_too, _ = run(KINDS, resume=saved)
    assert torch.equal(W_too, W)
    assert torch.equal(v_too, v)


def test_the_measuring_steps_train_the_plain_loss():
    _, W, _, _ = run(KINDS, stop=20, total_steps=None)
    _, free, _, _ = run(("static_equality",), factor=0.0, stop=20, total_steps=None)
    assert torch.equal(W, free)


def test_numbers_that_are_given_switch_the_automatic_off():
    optimizer, _, _, _ = run(KINDS, beta_1=0.1, stop=3)
    assert optimizer.dual.started
    assert optimizer.dual.scale is None
    assert optimizer.dual.beta_1 == 0.1
    assert not optimizer.estimate.on
    assert optimizer.schedule.updates == "epoch"


def test_a_block_without_a_gradient_in_the_first_steps_has_no_weight():
    p = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    constraints = ConstraintRegistry()
    constraints.inequality("asleep", lambda: torch.relu(p.sum() - 100.0).reshape(1))
    optimizer = PowerALMOptimizer(torch.optim.SGD([p], 0.1), constraints, total_steps=50)
    for _ in range(50):
        optimizer.zero_grad()
        (p - 1).square().sum().backward()
        optimizer.step()
    assert optimizer.dual.scale.tolist() == [0.0]
    assert p.tolist() == pytest.approx([1.0, 1.0], abs=1e-3)


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_a_block_that_wakes_up_late_and_sleeps_again_is_met(factor):
    """The loss pulls p to 3, its gradient vanishes up to the bound 1, and again where it holds."""
    p = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    constraints = ConstraintRegistry()
    constraints.inequality("late", lambda: factor * torch.relu(p.sum() - 1.0).reshape(1))
    optimizer = PowerALMOptimizer(torch.optim.Adam([p], lr=0.02), constraints, total_steps=400)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
    for k in range(400):
        optimizer.zero_grad()
        (p - 1.5).square().sum().backward()
        optimizer.step()
        scheduler.step()
        if k == 19:
            assert float(p.detach().sum()) < 1  # asleep in all measuring steps
    assert 0.97 < float(p.detach().sum()) < 1.01


def test_it_equals_a_loop_written_by_hand():
    torch.manual_seed(0)
    a = torch.randn(6, dtype=torch.float64)
    start = torch.randn(6, dtype=torch.float64)
    p = nn.Parameter(start.clone())
    constraints = ConstraintRegistry()
    constraints.equality("ball", lambda: (p.square().sum() - 1).reshape(1))
    base = torch.optim.SGD([p], 0.05)
    optimizer = PowerALMOptimizer(base, constraints, nu=0.8, total_steps=200)
    schedule = torch.optim.lr_scheduler.LambdaLR(base, lambda t: 1 - t / 250)
    for _ in range(200):
        optimizer.zero_grad()
        (p - a).square().sum().backward()
        optimizer.step()
        schedule.step()

    # By hand: 20 plain steps measure pull, change and move; then w = s (y + βc̃^ν). Every tenth step
    # takes new averages, and moves y by β, as the base has no momentum, unless the violation falls
    # fast; half as far again while it would last too long. y is in the user's units; where it
    # pushes away, the penalty may pull harder by as much.
    pace, paces = 1.0, []
    q, y, before, due, scale, longest = start.clone(), 0.0, None, False, 0.0, math.inf
    pulls, changes, rates = [], [], [0.05 * (1 - t / 250) for t in range(200)]

    def units(rate):
        move = 0.3 * moved * max(rate, 0.1 * 0.05) / statistics.fmean(rates[:20])
        return statistics.median(pulls) * move, 1 / (statistics.fmean(changes) * move)

    def force(c):
        far = (1 + max(0.0, -y * math.copysign(1, c)) / scale / beta) ** (1 / 0.8)
        near = max(-far, min(far, scale * c))
        return beta * abs(near) ** 0.8 * math.copysign(1, near)

    for t, rate in enumerate(rates):
        grad = 2 * (q - a)
        if t < 20 or due:
            kept = 20 if t < 20 else 4
            pulls, changes = [*pulls[-kept:], norm(grad)], [*changes[-kept:], 2 * norm(q)]
            due = False
        c = q.square().sum().item() - 1
        if t >= 20:
            grad = grad + (y + scale * force(c)) * 2 * q
            grad = grad * min(1.0, longest / norm(grad))
        q = q - rate * grad
        if t == 19:
            moved, longest = norm(q - start), 3 * statistics.fmean(pulls)
            beta = 10**-0.5 * units(rate)[0]
        if t % 10 == 9 and t >= 19:
            c = q.square().sum().item() - 1
            unit, scale = units(rate)
            distance, past = scale * abs(c), 0.0 if before is None else abs(before)
            same, fast = c * (before or 0.0) > 0, abs(c) < (1 - 0.3 / max(1.0, distance)) * past
            in_time = abs(c) < (past - abs(c)) * (199 - t) / 10 / 2
            late = same and not fast and not in_time and abs(y) / scale / unit < 3
            pace = 1.5 * pace if late else 1.0
            if not (same and fast and (in_time or distance <= 1)):
                y += pace * scale * force(c)
            paces.append(pace)
            beta = 10 ** ((t + 1) / 200 - 0.5) * unit
            before, due = c, True
    assert torch.allclose(p.detach(), q, rtol=1e-10)
    assert optimizer.dual.y.item() == pytest.approx(y, rel=1e-10)
    assert abs(c) < 2e-3
    assert max(paces) > 1


def test_a_proxy_that_sleeps_counts_as_a_part_of_what_it_was():
    units = AutomaticUnits(2, 1.0, follows_length=False)
    units.pull, units.pulls["c"], units.sizes["c"] = [2.0, 2.0], [2.0], [10.0]
    units.change["c"] = [0.0, 0.0, 4.0, 0.0]  # one batch in four has an example that is awake
    assert units.sensitivity("c") == pytest.approx(1.0)
    units.change["c"], units.peaks["c"] = [1e-20, 1e-30], 1.0
    assert units.sensitivity("c") == pytest.approx(0.1)
    assert units.scale("c") == pytest.approx(1 / (0.1 * units.move("c")))
    assert units.scale("c", room=5.0) == pytest.approx(1 / 5)  # it holds by 5


def test_a_block_that_holds_has_room_if_it_has_no_multiplier():
    p = nn.Parameter(torch.tensor([0.0, 0.0, 3.0], dtype=torch.float64))
    constraints = ConstraintRegistry()
    constraints.inequality("holds", lambda: p[:2] - torch.tensor([1.0, 2.0]))
    constraints.inequality("partly", lambda: p - 1.0)
    constraints.equality("equal", lambda: p[:1] + 1.0)
    optimizer = PowerALMOptimizer(torch.optim.SGD([p], 1e-6), constraints, total_steps=40)
    for _ in range(5):  # of which four measure
        optimizer.zero_grad()
        (p - 1).square().sum().backward()
        optimizer.step()
    assert optimizer.dual.started
    scale = dict(
        zip(("holds", "partly", "equal"), optimizer.dual.scale.split([2, 3, 1]), strict=True)
    )
    assert scale["holds"].max() <= 1.0 + 1e-5  # 1 is the smaller of its margins
    assert scale["partly"].min() > 1.0


def test_the_pull_of_a_loss_that_vanished_counts_as_a_part_of_its_first_gradients():
    units = AutomaticUnits(2, 1.0, follows_length=True)
    units.pull, units.pulls["c"] = [2.0, 4.0], [0.0, 1e-6, 2e-6]
    assert units.loss_pull("c") == pytest.approx(0.3)
    units.follows_length = False  # such a base divides the gradient by its size
    assert units.loss_pull("c") == pytest.approx(1.5e-6)
