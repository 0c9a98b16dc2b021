"""The gradient of the constraints against loops that differentiate L_β in full."""

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from tests.training.small_training import (
    F64,
    HYBRID,
    NU,
    STATIC,
    Average,
    Twin,
    assert_same,
    batches,
    constrained,
    flat,
    measure,
    multipliers,
    registry,
    static,
    train,
    train_twin,
    two_nets,
)

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

            def full_closure(x=x, target=target):
                nonlocal evaluations
                evaluations += 1
                plain.zero_grad()
                loss, values = measure(theirs, x, target)
                total = loss + twin.value(torch.cat([static(theirs), flat(values)]))
                total.backward()
                return total

            plain.step(full_closure)
            average.add(measure(theirs, x, target)[1])  # a step counts with the accepted point
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
        assert optimizer.epoch.steps == 2
        optimizer.update_multipliers()
    twin = Twin(HYBRID, nu)
    train_twin(theirs, BASES["adam"](theirs.parameters()), twin, skip=1)
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)
