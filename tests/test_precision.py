"""Loss scaling, low precision, and what happens to values that are not finite."""

import copy
import math
from typing import Any

import pytest
import torch
from test_injection import (
    F64,
    HYBRID,
    Average,
    Net,
    Twin,
    assert_same,
    batches,
    constrained,
    flat,
    measure,
    multipliers,
    registry,
    static,
    train_twin,
)
from torch import Tensor, nn, optim
from torch.nn.utils import clip_grad_norm_

from torch_powalm import ConstraintRegistry, PowerALMOptimizer


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


BASES = {
    "Adam": lambda model: optim.Adam(model.parameters(), lr=0.02),
    "Adam fused": lambda model: optim.Adam(model.parameters(), lr=0.02, fused=True),
    "SGD": lambda model: optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
    "SGD fused": lambda model: optim.SGD(model.parameters(), lr=0.02, momentum=0.9, fused=True),
}
EACH_BASE = pytest.mark.parametrize("base", BASES.values(), ids=BASES)


def wrapped(model: Net, base: Any = BASES["Adam"], **settings: Any) -> PowerALMOptimizer:
    return constrained(base(model), registry(model), **{"nu": 0.7, **settings})


def cpu_scaler() -> torch.amp.GradScaler:
    """Powers of two, so that scaling is exact."""
    return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)


# Loss scaling


@EACH_BASE
@pytest.mark.parametrize("unscale", [False, True], ids=["implicit unscale", "explicit unscale"])
def test_a_scaled_run_equals_the_full_lagrangian(unscale, base):
    ours, theirs = Net(), Net()
    optimizer, scaler, twin = wrapped(ours, base), cpu_scaler(), Twin(HYBRID, 0.7)
    for _ in range(3):
        for x, target in batches():
            optimizer.zero_grad()
            loss, values = measure(ours, x, target)
            scaler.scale(optimizer.augment(loss, **values)).backward()
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        optimizer.update_multipliers()
    train_twin(theirs, base(theirs), twin)
    assert scaler.get_scale() == 4096.0
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)


@EACH_BASE
@pytest.mark.parametrize("total", [False, True], ids=["loss only", "total"])
def test_clipping_a_scaled_gradient_takes_the_loss_or_the_total(total, base):
    ours, theirs = Net(), Net()
    optimizer, scaler = wrapped(ours, base), cpu_scaler()
    plain, twin = base(theirs), Twin(HYBRID, 0.7)
    for _ in range(2):
        average = Average()
        for x, target in batches():
            optimizer.zero_grad()
            loss, values = measure(ours, x, target)
            scaler.scale(optimizer.augment(loss, **values)).backward()
            scaler.unscale_(optimizer)
            if total:
                optimizer.backward_constraints()
            clip_grad_norm_(ours.parameters(), 0.05)
            scaler.step(optimizer)
            scaler.update()

            plain.zero_grad()
            loss, values = measure(theirs, x, target)
            A_static, A_batch = static(theirs), flat(values)
            (loss + twin.value(torch.cat([A_static.detach(), A_batch]))).backward()
            if not total:
                clip_grad_norm_(theirs.parameters(), 0.05)
            twin.value(torch.cat([A_static, A_batch.detach()])).backward()
            if total:
                clip_grad_norm_(theirs.parameters(), 0.05)
            plain.step()
            average.add(values)
        optimizer.update_multipliers()
        twin.update(torch.cat([static(theirs), average.value()]))
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)


@EACH_BASE
@pytest.mark.parametrize("form", ["implicit", "explicit", "total"])
def test_a_skipped_step_moves_nothing_and_does_not_count(form, base):
    ours, theirs = Net(), Net()
    optimizer, scaler, twin = wrapped(ours, base), cpu_scaler(), Twin(HYBRID, 0.7)
    for _ in range(2):
        for i, (x, target) in enumerate(batches()):
            before = copy.deepcopy((ours.state_dict(), optimizer.state_dict()))
            optimizer.zero_grad()
            loss, values = measure(ours, x, target)
            overflow = math.inf if i == 2 else 1.0
            (scaler.scale(optimizer.augment(loss, **values)) * overflow).backward()
            if form != "implicit":
                scaler.unscale_(optimizer)
            if form == "total":
                optimizer.backward_constraints()
            scaler.step(optimizer)
            scaler.update()
            if i == 2:
                assert_untouched(before, ours, optimizer)
        assert optimizer.steps == 2
        assert optimizer.skipped == 0  # the scaler's skips are the scaler's
        optimizer.update_multipliers()
    train_twin(theirs, base(theirs), twin, epochs=2, skip=2)
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)


@pytest.mark.parametrize("clear", ["optimizer", "model"])
def test_a_total_clip_after_a_skipped_step_still_has_the_constraints(clear):
    ours, theirs = Net(), Net()
    for net, factors in ((ours, (math.inf, 1.0)), (theirs, (1.0,))):
        optimizer = constrained(
            optim.SGD(net.parameters(), lr=0.1), registry(net, batch=False), nu=0.7
        )
        scaler = cpu_scaler()
        for factor in factors:
            (optimizer if clear == "optimizer" else net).zero_grad()
            (scaler.scale(measure(net, *batches()[0])[0]) * factor).backward()
            scaler.unscale_(optimizer)
            optimizer.backward_constraints()
            clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        assert optimizer.steps == 1
    assert_same(ours, theirs)


def test_constraints_added_before_unscaling_are_unscaled_away():
    """The order matters: this is what backward_constraints() warns of."""
    moved = []
    for wrong in (False, True):
        model = Net()
        optimizer = constrained(
            optim.SGD(model.parameters(), lr=0.1), registry(model, batch=False), nu=0.7
        )
        scaler = cpu_scaler()
        scaler.scale(measure(model, *batches()[0])[0]).backward()
        if wrong:
            optimizer.backward_constraints()
        scaler.unscale_(optimizer)
        if not wrong:
            optimizer.backward_constraints()
        scaler.step(optimizer)
        moved.append(model.first.weight.detach())
    twin, reference = Twin(HYBRID[:6], 0.7), Net()
    twin.value(static(reference)).backward()
    lost = 0.1 * reference.first.weight.grad * (1 - 1 / 1024)
    assert_same(moved[1] - moved[0], lost)
    assert float(lost.norm()) > 0.1


# Values and gradients that are not finite

BLOCKS = ("static_block", "batch_block")


class Fragile:
    """A problem whose blocks can be spoiled for one step: by value, or by gradient alone."""

    def __init__(self, blocks: tuple[str, ...] = BLOCKS, base: Any = None, **settings: Any) -> None:
        self.model, self.spoil = Net(), {}
        constraints = ConstraintRegistry()
        if "static_block" in blocks:
            constraints.inequality("fine", self.model.budget)
            constraints.equality("static_block", lambda: self.value("static_block"))
        if "batch_block" in blocks:
            constraints.inequality("batch_block", size=5)
        base = optim.Adam(self.model.parameters(), lr=0.02) if base is None else base(self.model)
        self.optimizer = constrained(base, constraints, **{"nu": 0.7, **settings})
        self.batch = "batch_block" in blocks

    def value(self, name: str) -> Tensor:
        value = self.model.unit_rows()
        how = self.spoil.get(name)
        if how == "gradient":
            return value + (0 * value[0]).sqrt()  # 0, with the gradient 0 · ∞
        factor = {"nan": math.nan, "inf": math.inf}.get(how, 1.0)
        return value * torch.tensor([1.0, 1.0, factor, 1.0, 1.0], dtype=F64)

    def backward(self, x: Tensor, target: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = measure(self.model, x, target)[0]
        if self.batch:
            strict = {"batch_block": self.value("strict")} if "strict" in self.spoil else None
            loss = self.optimizer.augment(
                loss, batch_block=self.value("batch_block"), strict=strict
            )
        if self.spoil.get("loss") == "gradient":
            loss = loss + (0 * loss).sqrt()
        loss.backward()
        return loss

    def step(self, batch: int, *, closure: bool = False) -> None:
        if closure:
            self.optimizer.step(lambda: self.backward(*batches()[batch]))
        else:
            self.backward(*batches()[batch])
            self.optimizer.step()

    def epoch(self) -> None:
        for batch in range(3):
            self.step(batch)
        self.optimizer.update_multipliers()


def assert_untouched(before: Any, model: nn.Module, optimizer: PowerALMOptimizer) -> None:
    """Parameters, base state, multipliers and epoch averages are the same bits."""
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[0][name]), name
    state = optimizer.state_dict()
    assert state["state"].keys() == before[1]["state"].keys()
    for i, moments in state["state"].items():
        for name, value in moments.items():
            assert torch.equal(value, before[1]["state"][i][name]), name
    now, then = state["powalm"], before[1]["powalm"]
    for name, y in (now["y"] or {}).items():
        assert torch.equal(y, then["y"][name] if then["y"] else torch.zeros_like(y)), name
    assert now["epoch"].keys() == then["epoch"].keys()
    for name, sums in now["epoch"].items():
        for a, b in zip(sums, then["epoch"][name], strict=True):
            assert torch.equal(torch.as_tensor(a), torch.as_tensor(b)), name
    for name in ("beta", "k", "steps", "gradient_norm"):
        assert now[name] == then[name], name


SPOILED = [
    ("static_block", "nan", "constraint 'static_block' must be finite"),
    ("static_block", "inf", "constraint 'static_block' must be finite"),
    ("static_block", "gradient", "gradient of constraint 'static_block' must be finite"),
    ("batch_block", "nan", "constraint 'batch_block' must be finite"),
    ("batch_block", "inf", "constraint 'batch_block' must be finite"),
    ("batch_block", "gradient", "gradient of the loss must be finite"),
    ("strict", "nan", "constraint 'batch_block' must be finite"),
    ("strict", "inf", "constraint 'batch_block' must be finite"),
    ("loss", "gradient", "gradient of the loss must be finite"),
]
EACH_SPOILED = pytest.mark.parametrize(
    ("where", "how", "message"), SPOILED, ids=[f"{where} {how}" for where, how, _ in SPOILED]
)


@EACH_SPOILED
@pytest.mark.parametrize("closure", [False, True], ids=["", "closure"])
@pytest.mark.parametrize("first", [True, False], ids=["at the first step", "within an epoch"])
def test_what_is_not_finite_raises_by_name_and_touches_nothing(first, closure, where, how, message):
    run, reference = Fragile(), Fragile()
    if not first:
        run.epoch()
        run.step(0)
        reference.epoch()
        reference.step(0)
    before = copy.deepcopy((run.model.state_dict(), run.optimizer.state_dict()))
    run.spoil[where] = how
    with pytest.raises(FloatingPointError, match=message):
        run.step(1, closure=closure)
    assert_untouched(before, run.model, run.optimizer)
    run.spoil.clear()
    run.epoch()
    reference.epoch()
    assert torch.equal(run.model.first.weight, reference.model.first.weight)
    assert torch.equal(multipliers(run.optimizer), multipliers(reference.optimizer))


@EACH_SPOILED
@pytest.mark.parametrize("closure", [False, True], ids=["", "closure"])
@pytest.mark.parametrize("first", [True, False], ids=["at the first step", "within an epoch"])
def test_what_is_not_finite_can_be_skipped_and_is_counted(first, closure, where, how, message):
    run, reference = Fragile(on_nonfinite="skip"), Fragile()
    if not first:
        run.epoch()
        run.step(0)
        reference.epoch()
        reference.step(0)
    before = copy.deepcopy((run.model.state_dict(), run.optimizer.state_dict()))
    run.spoil[where] = how
    for skipped in (1, 2):
        run.step(1, closure=closure)
        assert run.optimizer.skipped == skipped
        assert_untouched(before, run.model, run.optimizer)
    run.spoil.clear()
    run.epoch()
    reference.epoch()
    assert torch.equal(run.model.first.weight, reference.model.first.weight)
    assert torch.equal(multipliers(run.optimizer), multipliers(reference.optimizer))
    assert run.optimizer.skipped == 2


@pytest.mark.parametrize("how", ["nan", "inf", "gradient"])
@pytest.mark.parametrize("manual", [False, True], ids=["", "backward_constraints"])
def test_parameter_only_blocks_alone_raise_or_skip(manual, how):
    """No augment() looks at them first, and clipping spreads a nan to all gradients."""

    def step(run):
        run.backward(*batches()[0])
        if manual:
            run.optimizer.backward_constraints()
            clip_grad_norm_(run.model.parameters(), 1.0)
        run.optimizer.step()

    for mode in ("raise", "skip"):
        run = Fragile(("static_block",), on_nonfinite=mode)
        step(run)
        before = copy.deepcopy((run.model.state_dict(), run.optimizer.state_dict()))
        run.spoil["static_block"] = how
        if mode == "raise":
            with pytest.raises(FloatingPointError, match="constraint 'static_block'"):
                step(run)
        else:
            step(run)
            assert run.optimizer.skipped == 1
        assert_untouched(before, run.model, run.optimizer)
        run.spoil.clear()
        step(run)
        assert run.optimizer.steps == 2
        assert not torch.equal(run.model.first.weight, before[0]["first.weight"])


def test_a_batch_block_alone_is_skipped_too():
    run = Fragile(("batch_block",), on_nonfinite="skip")
    run.step(0)
    before = copy.deepcopy((run.model.state_dict(), run.optimizer.state_dict()))
    run.spoil["batch_block"] = "nan"
    run.step(1)
    assert run.optimizer.skipped == 1
    assert_untouched(before, run.model, run.optimizer)


@pytest.mark.parametrize("mode", ["raise", "skip"])
def test_a_line_search_that_meets_a_nan_returns_to_its_start(mode):
    def lbfgs(model):
        return optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")

    run = Fragile(("static_block",), lbfgs, on_nonfinite=mode)
    run.step(0, closure=True)
    run.optimizer.update_multipliers()
    start = copy.deepcopy(run.model.state_dict())
    y, steps = multipliers(run.optimizer), run.optimizer.steps
    calls = []

    def closure():
        calls.append(1)
        if len(calls) == 3:
            run.spoil["static_block"] = "nan"
        return run.backward(*batches()[1])

    if mode == "raise":
        with pytest.raises(FloatingPointError, match="constraint 'static_block' must be finite"):
            run.optimizer.step(closure)
    else:
        assert run.optimizer.step(closure) is None
        assert run.optimizer.skipped == 1
    assert len(calls) == 3
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, start[name])
    assert torch.equal(multipliers(run.optimizer), y)
    assert run.optimizer.steps == steps
    run.spoil.clear()
    run.step(1, closure=True)
    assert all(p.isfinite().all() for p in run.model.parameters())
    assert not torch.equal(run.model.first.weight, start["first.weight"])


@pytest.mark.parametrize("where", ["static_block", "strict"])
@pytest.mark.parametrize("mode", ["raise", "skip"])
def test_an_update_with_a_value_that_is_not_finite_leaves_the_multipliers(mode, where):
    run = Fragile(on_nonfinite=mode)
    run.epoch()
    run.step(0)
    before = copy.deepcopy(run.optimizer.state_dict()["powalm"])
    exact = {}
    if where == "static_block":
        run.spoil["static_block"] = "nan"
    else:
        exact = {"batch_block": torch.full((5,), math.inf, dtype=F64)}
    if mode == "raise":
        name = "static_block" if where == "static_block" else "batch_block"
        with pytest.raises(FloatingPointError, match=f"constraint '{name}' must be finite"):
            run.optimizer.update_multipliers(**exact)
        assert run.optimizer.steps == before["steps"]
    else:
        assert math.isnan(run.optimizer.update_multipliers(**exact).primal_residual)
        assert run.optimizer.skipped == 1
    run.spoil.clear()
    after = run.optimizer.state_dict()["powalm"]
    assert all(torch.equal(after["y"][name], y) for name, y in before["y"].items())
    assert (after["beta"], after["k"]) == (before["beta"], before["k"])
    run.epoch()
    assert run.optimizer.dual.k == before["k"] + 1
    assert multipliers(run.optimizer).isfinite().all()


@EACH_BASE
def test_the_scaler_does_not_see_a_constraint_that_is_not_finite_but_the_wrapper_does(base):
    run, scaler = Fragile(base=base, on_nonfinite="skip"), cpu_scaler()

    def step(batch):
        run.optimizer.zero_grad()
        loss = measure(run.model, *batches()[batch])[0]
        loss = run.optimizer.augment(loss, batch_block=run.value("batch_block"))
        scaler.scale(loss).backward()
        scaler.step(run.optimizer)
        scaler.update()

    step(0)
    before = copy.deepcopy((run.model.state_dict(), run.optimizer.state_dict()))
    run.spoil["static_block"] = "gradient"
    step(1)
    assert run.optimizer.skipped == 1
    assert_untouched(before, run.model, run.optimizer)
    run.spoil.clear()
    step(2)
    assert all(p.isfinite().all() for p in run.model.parameters())
    assert run.optimizer.steps == 2


def test_a_huge_entry_does_not_switch_off_the_others():
    """‖A‖² overflows in float32; with ν < 1 an infinite norm would make every weight zero."""
    p = nn.Parameter(torch.tensor([1e30, 1.0]))
    constraints = ConstraintRegistry()
    constraints.equality("zero", lambda: p)
    optimizer = constrained(optim.SGD([p], lr=0.1), constraints, nu=0.5)
    optimizer.step()
    torch.testing.assert_close(p.grad, torch.tensor([1e15, 1e-15]), rtol=1e-5, atol=0)


# Low precision


class Half(nn.Module):
    """Two matrices, and a constraint with a product, which autocast would round."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.first = nn.Linear(6, 6, bias=False)
        self.second = nn.Linear(6, 3, bias=False)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(0.4 * torch.randn(p.shape, generator=generator))
        self.x = torch.randn(8, 6, generator=generator).to(dtype)
        self.target = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
        self.to(dtype)

    def loss(self) -> tuple[Tensor, Tensor]:
        logits = self.second(torch.tanh(self.first(self.x)))
        losses = nn.functional.cross_entropy(logits, self.target, reduction="none")
        return losses.mean(), logits.square().mean() - 0.1

    def orthogonal(self) -> Tensor:
        W = self.first.weight
        return W @ W.T - torch.eye(6, dtype=W.dtype)


def half(model: Half, base: Any = None, **settings: Any) -> PowerALMOptimizer:
    constraints = ConstraintRegistry()
    constraints.equality("orthogonal", lambda: model.orthogonal())
    constraints.inequality("energy", size=1)
    base = optim.SGD(model.parameters(), lr=0.05) if base is None else base(model.parameters())
    return constrained(base, constraints, **{"nu": 0.7, **settings})


def autocast(enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled)


def test_a_step_inside_autocast_equals_one_outside():
    """Neither the constraint nor its gradient is rounded to bfloat16."""
    results = []
    for inside in (False, True):
        model = Half()
        optimizer = half(model)
        for _ in range(3):
            optimizer.zero_grad()
            loss, energy = model.loss()
            optimizer.augment(loss, energy=energy).backward()
            with autocast(inside):
                optimizer.step()
        with autocast(inside):
            optimizer.update_multipliers()
        results.append((model.first.weight.detach(), multipliers(optimizer)))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_backward_constraints_inside_autocast_equals_outside():
    grads = []
    for inside in (False, True):
        model = Half()
        optimizer = half(model)
        loss, energy = model.loss()
        optimizer.augment(loss, energy=energy).backward()
        with autocast(inside):
            optimizer.backward_constraints()
        grads.append(model.first.weight.grad)
    assert torch.equal(grads[0], grads[1])


def test_augment_inside_autocast_evaluates_the_other_blocks_in_full_precision():
    class Watched(Half):
        def orthogonal(self):
            value = super().orthogonal()
            seen.append(value.dtype)
            return value

    seen, model = [], Watched()
    optimizer = half(model)
    with autocast():
        loss, energy = model.loss()
        assert model.second(model.x).dtype == torch.bfloat16
        augmented = optimizer.augment(loss, energy=energy)
    augmented.backward()
    optimizer.step()
    assert set(seen) == {torch.float32}


def test_an_autocast_run_stays_near_the_full_precision_one():
    results = []
    for enabled in (False, True):
        model = Half()
        optimizer = half(model)
        for _ in range(5):
            optimizer.zero_grad()
            with autocast(enabled):
                loss, energy = model.loss()
                loss = optimizer.augment(loss, energy=energy)
            loss.backward()
            optimizer.step()
        optimizer.update_multipliers()
        results.append((model.first.weight.detach(), multipliers(optimizer)))
        assert multipliers(optimizer).dtype == torch.float32
    # The forward pass has eight bits, so this is a check of magnitudes.
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("nu", [0.3, 1.0])
@pytest.mark.parametrize(
    "base",
    [
        lambda params: optim.SGD(params, lr=0.05),
        lambda params: optim.Adam(params, lr=0.02, eps=1e-3),  # 1e-8 is 0 in float16
    ],
    ids=["SGD", "Adam"],
)
def test_low_precision_parameters_have_float32_multipliers(base, nu, dtype):
    results = []
    for of in (dtype, torch.float32):
        model = Half(of)
        optimizer = half(model, base, nu=nu)
        for _ in range(2):
            for _ in range(5):
                optimizer.zero_grad()
                loss, energy = model.loss()
                optimizer.augment(loss, energy=energy).backward()
                optimizer.step()
            before_update = optimizer.state_dict()["powalm"]["epoch"]
            optimizer.update_multipliers()
        assert {y.dtype for y in optimizer.state_dict()["powalm"]["y"].values()} == {torch.float32}
        assert before_update["energy"][0].dtype == torch.float32
        assert all(p.dtype == of for p in model.parameters())
        results.append((model.first.weight.detach().float(), multipliers(optimizer)))
    # Eight bits of mantissa, ten steps, and moments of Adam that underflow: a check of magnitudes.
    for low, full in zip(*results, strict=True):
        assert low.isfinite().all()
        assert (low - full).norm() < 0.1 * full.norm()


def test_float16_gradients_whose_squares_overflow_are_finite():
    p = nn.Parameter(torch.ones(3, dtype=torch.float16))
    constraints = ConstraintRegistry()
    constraints.equality("sum", lambda: p.sum() - 3)
    optimizer = constrained(optim.SGD([p], lr=0.001), constraints)
    (300 * p).sum().backward()
    optimizer.step()
    assert optimizer.gradient_norm == pytest.approx(300 * math.sqrt(3), rel=1e-3)
    torch.testing.assert_close(p.detach(), torch.full((3,), 0.7, dtype=torch.float16))


def test_parameters_of_several_types_share_one_constraint():
    p, q = nn.Parameter(torch.ones(2, dtype=torch.bfloat16)), nn.Parameter(torch.ones(2))
    constraints = ConstraintRegistry()
    constraints.equality("sum", lambda: p + q)
    constraints.equality("low", lambda: p - 1)
    optimizer = constrained(optim.SGD([p, q], lr=0.25), constraints, nu=1.0)
    optimizer.step()
    assert (p.dtype, q.dtype) == (torch.bfloat16, torch.float32)
    assert p.tolist() == q.tolist() == [0.5, 0.5]
    optimizer.update_multipliers()
    assert multipliers(optimizer).dtype == torch.float32
    assert multipliers(optimizer).tolist() == [1.0, 1.0, -0.5, -0.5]


def test_training_in_float32_keeps_its_type():
    model = Half()
    optimizer = half(model)
    loss, energy = model.loss()
    optimizer.augment(loss, energy=energy).backward()
    optimizer.step()
    optimizer.update_multipliers()
    assert multipliers(optimizer).dtype == torch.float32
