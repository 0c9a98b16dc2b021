"""What happens to values and gradients that are not finite."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn.utils import clip_grad_norm_

from tests.training.small_training import (
    EACH_BASE,
    F64,
    Net,
    batches,
    constrained,
    cpu_scaler,
    measure,
    multipliers,
)
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

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
        if self.spoil.get("loss") == "nan":
            loss = loss * math.nan
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


OF_BOTH = r"gradient of the loss or of the batch constraints \('batch_block'\) must be finite"
SPOILED = [
    ("static_block", "nan", "constraint 'static_block' must be finite"),
    ("static_block", "inf", "constraint 'static_block' must be finite"),
    ("static_block", "gradient", "gradient of constraint 'static_block' must be finite"),
    ("batch_block", "nan", "constraint 'batch_block' must be finite"),
    ("batch_block", "inf", "constraint 'batch_block' must be finite"),
    ("batch_block", "gradient", OF_BOTH),
    ("strict", "nan", "constraint 'batch_block' must be finite"),
    ("strict", "inf", "constraint 'batch_block' must be finite"),
    ("loss", "gradient", OF_BOTH),
    ("loss", "nan", "gradient of the loss must be finite"),
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
        assert run.optimizer.epoch.skipped == skipped
        assert_untouched(before, run.model, run.optimizer)
    run.spoil.clear()
    run.epoch()
    reference.epoch()
    assert torch.equal(run.model.first.weight, reference.model.first.weight)
    assert torch.equal(multipliers(run.optimizer), multipliers(reference.optimizer))
    assert run.optimizer.epoch.skipped == 2


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
            assert run.optimizer.epoch.skipped == 1
        assert_untouched(before, run.model, run.optimizer)
        run.spoil.clear()
        step(run)
        assert run.optimizer.epoch.steps == 2
        assert not torch.equal(run.model.first.weight, before[0]["first.weight"])


def test_a_batch_block_alone_is_skipped_too():
    run = Fragile(("batch_block",), on_nonfinite="skip")
    run.step(0)
    before = copy.deepcopy((run.model.state_dict(), run.optimizer.state_dict()))
    run.spoil["batch_block"] = "nan"
    run.step(1)
    assert run.optimizer.epoch.skipped == 1
    assert_untouched(before, run.model, run.optimizer)


@pytest.mark.parametrize("mode", ["raise", "skip"])
def test_a_line_search_that_meets_a_nan_returns_to_its_start(mode):
    def lbfgs(model):
        return optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")

    run = Fragile(("static_block",), lbfgs, on_nonfinite=mode)
    run.step(0, closure=True)
    run.optimizer.update_multipliers()
    start = copy.deepcopy(run.model.state_dict())
    y, steps = multipliers(run.optimizer), run.optimizer.epoch.steps
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
        assert run.optimizer.epoch.skipped == 1
    assert len(calls) == 3
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, start[name])
    assert torch.equal(multipliers(run.optimizer), y)
    assert run.optimizer.epoch.steps == steps
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
        assert run.optimizer.epoch.steps == before["steps"]
    else:
        assert math.isnan(run.optimizer.update_multipliers(**exact).primal_residual)
        assert run.optimizer.epoch.skipped == 1
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
    assert run.optimizer.epoch.skipped == 1
    assert_untouched(before, run.model, run.optimizer)
    run.spoil.clear()
    step(2)
    assert all(p.isfinite().all() for p in run.model.parameters())
    assert run.optimizer.epoch.steps == 2


def test_a_huge_entry_does_not_switch_off_the_others():
    """‖A‖² overflows in float32; with ν < 1 an infinite norm would make every weight zero."""
    p = nn.Parameter(torch.tensor([1e30, 1.0]))
    constraints = ConstraintRegistry()
    constraints.equality("zero", lambda: p)
    optimizer = constrained(optim.SGD([p], lr=0.1), constraints, nu=0.5)
    optimizer.step()
    torch.testing.assert_close(p.grad, torch.tensor([1e15, 1e-15]), rtol=1e-5, atol=0)
