"""Under check_finite="at_update", a value that is not finite changes nothing and is named later."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.on_device.test_device_reads import EVERY, Training
from tests.versions import TORCH
from torch_powalm import ConstraintRegistry, PowerALMOptimizer
from torch_powalm.prox import L1

pytestmark = pytest.mark.filterwarnings("ignore::torch_powalm.ConstraintWarning")


def momentum(params: Any, **settings: Any) -> optim.Optimizer:
    return optim.SGD(params, momentum=0.9, **settings)


def fused(params: Any, **settings: Any) -> optim.Optimizer:
    return optim.Adam(params, fused=True, **settings)


BASES = pytest.mark.parametrize("base", [optim.Adam, momentum, fused, optim.Adagrad])


class Fragile:
    """A training that one can spoil for a step: a value, or the gradient of the loss."""

    def __init__(self, base: Any = optim.Adam, prox: bool = False, **settings: Any) -> None:
        torch.manual_seed(0)
        self.model, self.spoil = nn.Linear(3, 4), ""
        constraints = ConstraintRegistry()
        constraints.equality("static", self._static)
        constraints.inequality("batch", size=2)
        terms = {self.model.bias: L1(0.1)} if prox else None
        self.optimizer = PowerALMOptimizer(
            base(self.model.parameters(), lr=0.05),
            constraints,
            prox=terms,
            **{"beta_1": 1.0, "check_finite": "at_update", **settings},
        )
        self.generator = torch.Generator().manual_seed(1)

    def _static(self) -> torch.Tensor:
        value = self.model.weight.square().sum(1) - 1
        if self.spoil == "static gradient":
            return value + (0 * value).sqrt()
        return value * (math.nan if self.spoil == "static" else 1.0)

    def step(self, spoil: str = "") -> None:
        self.spoil = spoil
        out = self.model(torch.randn(5, 3, generator=self.generator))
        value, count = out.mean(0)[:2] - 0.1, torch.tensor([1.0, 2.0])
        if spoil == "batch":
            value = value / torch.tensor([1.0, 0.0])
        if spoil == "count":
            count = -count
        loss = (out - 1).square().mean() * (math.inf if spoil == "loss" else 1.0)
        self.optimizer.zero_grad()
        self.optimizer.augment(loss, batch=(value, count)).backward()
        self.optimizer.step()
        self.spoil = ""

    def state(self) -> dict[str, Any]:
        saved = copy.deepcopy(self.optimizer.state_dict())
        for name in ("skipped",):
            del saved["powalm"][name]
        return {"model": copy.deepcopy(self.model.state_dict()), **saved}


SPOILS = {
    "static": "constraint 'static'",
    "batch": "constraint 'batch'",
    "count": "constraint 'batch'",
    "static gradient": "gradient of constraint 'static'",
    "loss": r"gradient of the loss or of the batch constraints \('batch'\)",
}


@BASES
@pytest.mark.parametrize("spoil", SPOILS)
def test_a_step_that_is_not_finite_changes_nothing(spoil: str, base: Any) -> None:
    training = Fragile(base, on_nonfinite="skip")
    for _ in range(3):
        training.step()
    before = training.state()
    training.step(spoil)
    torch.testing.assert_close(training.state(), before, rtol=0, atol=0)
    assert training.optimizer.epoch.skipped == 1


@BASES
def test_the_first_step_may_be_the_one(base: Any) -> None:
    training, twin = Fragile(base, on_nonfinite="skip"), Fragile(base, on_nonfinite="skip")
    training.step("loss")
    twin.step("loss")
    if base is optim.Adagrad and TORCH < (2, 6):
        pytest.skip("this Adagrad makes its state when it is built")
    twin.optimizer.base.state.clear()  # as if the base had not made its first step
    for _ in range(3):
        training.step()
        twin.step()
    torch.testing.assert_close(training.model.state_dict(), twin.model.state_dict())


def decayed(params: Any, **settings: Any) -> optim.Optimizer:
    return optim.SGD(params, momentum=0.9, weight_decay=0.1, **settings)


@pytest.mark.parametrize("base", [optim.Adam, optim.ASGD, optim.NAdam, optim.RAdam, decayed, fused])
def test_what_a_base_creates_in_such_a_first_step_does_not_stay(base: Any) -> None:
    trained = []
    for check_finite in ("every_step", "at_update"):
        training = Fragile(base, on_nonfinite="skip", check_finite=check_finite)
        training.step("loss")
        for _ in range(3):
            training.step()
        trained.append(training)
    one, other = (t.optimizer.base.state_dict()["state"] for t in trained)
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    assert [t.optimizer.epoch.skipped for t in trained] == [1, 1]


def test_steps_left_out_make_the_warm_up_longer() -> None:
    for check_finite in ("every_step", "at_update"):
        training = Fragile(on_nonfinite="skip", warm_up=4, updates=1, check_finite=check_finite)
        started = []
        for spoil in ("", "loss", "", "batch", "", "", ""):
            training.step(spoil)
            started.append(training.optimizer.dual.started)
        assert started == [False] * 5 + [True] * 2


def test_a_running_average_starts_at_the_first_step_that_counts() -> None:
    tracks = []
    for check_finite in ("every_step", "at_update"):
        training = Training(
            ("rate", "mean", "counts"),
            optim.SGD,
            total_steps=100,
            check_finite=check_finite,
            on_nonfinite="skip",
        )
        for factor in (math.nan, 1.0, 1.0, 1.0):
            training.step(factor)
        state = training.optimizer.state_dict()
        training.optimizer.load_state_dict(state)
        tracks.append(training.optimizer.estimate.state_dict())
    for name, track in tracks[0].items():
        for one, other in zip(track, tracks[1][name], strict=True):
            torch.testing.assert_close(*map(torch.as_tensor, (one, other)), check_dtype=False)


def test_the_prox_of_such_a_step_is_taken_back() -> None:
    training = Fragile(optim.SGD, prox=True, on_nonfinite="skip")
    training.step()
    before = copy.deepcopy(training.model.state_dict())
    training.step("loss")
    torch.testing.assert_close(training.model.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("spoil", SPOILS)
def test_the_next_update_raises_by_name(spoil: str) -> None:
    training = Fragile()
    training.step()
    training.step(spoil)
    training.spoil = spoil if spoil == "static gradient" else ""
    with pytest.raises(FloatingPointError, match=f"{SPOILS[spoil]} must be finite, got nan or inf"):
        training.optimizer.update_multipliers()
    training.spoil = ""
    training.step()
    assert training.optimizer.update_multipliers().k == 1  # told once


def test_the_next_record_names_what_was_skipped() -> None:
    training = Fragile(on_nonfinite="skip")
    for spoil in ("", "batch", "", "static"):
        training.step(spoil)
    record = training.optimizer.update_multipliers()
    assert record.signals == ("not finite: constraint 'static', constraint 'batch'",)
    assert training.optimizer.epoch.skipped == 2
    assert training.optimizer.epoch.total_steps == 2


def test_an_update_after_skipped_steps_alone_is_skipped() -> None:
    training = Fragile(on_nonfinite="skip")
    training.step()
    training.optimizer.update_multipliers()
    training.step("loss")
    record = training.optimizer.update_multipliers()
    assert math.isnan(record.primal_residual)
    assert training.optimizer.dual.k == 2


def test_both_modes_skip_alike() -> None:
    trained = []
    for check_finite in ("every_step", "at_update"):
        training = Training(EVERY, beta_1=1.0, on_nonfinite="skip", check_finite=check_finite)
        for i in range(12):
            training.step(math.nan if i in (2, 7) else 1.0)
            if i % 3 == 2:
                training.optimizer.update_multipliers()
        trained.append(training)
    one, other = trained
    assert one.optimizer.epoch.skipped == other.optimizer.epoch.skipped == 2
    for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-5)


def test_on_another_device_than_the_cpu_checks_wait_by_default() -> None:
    """Tensors of the device "meta" have no values, so that every read raises."""
    training = Training(EVERY, optim.SGD, beta_1=1.0, nu=0.5, device="meta")
    batch = training.batch
    training.batch = lambda: tuple(v.to("meta") for v in batch())  # type: ignore[method-assign]
    for _ in range(3):
        training.step()
    assert training.optimizer.blocks.deferred


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize(
    "settings", [{"beta_1": 1.0, "nu": 0.5, "updates": 3}, {"total_steps": 60}]
)
def test_cuda_trains_like_the_cpu(settings: dict[str, Any]) -> None:
    trained = []
    for device in ("cpu", "cuda"):
        training = Training(EVERY, device=device, **settings)
        batch = training.batch
        training.batch = lambda to=device, draw=batch: tuple(  # type: ignore[method-assign]
            v.to(to) for v in draw()
        )
        for _ in range(15):
            training.step()
        trained.append(training)
    for p, q in zip(*(t.model.parameters() for t in trained), strict=True):
        torch.testing.assert_close(p, q.cpu(), rtol=1e-2, atol=1e-4)


def test_the_mode_must_be_known() -> None:
    message = "check_finite must be 'auto', 'every_step' or 'at_update', got 'never'"
    with pytest.raises(ValueError, match=message):
        Training(("rows",), check_finite="never")


def test_a_search_is_checked_at_every_step() -> None:
    training = Training(("rows",), optim.LBFGS, check_finite="at_update")
    training.optimizer.blocks.ready()
    assert not training.optimizer.blocks.deferred


def test_a_state_saved_after_a_bad_first_step_of_an_epoch_loads() -> None:
    training = Fragile(on_nonfinite="skip")
    training.step()
    training.optimizer.update_multipliers()
    training.step("loss")
    saved = training.optimizer.state_dict()
    assert saved["powalm"]["gradient_norm"] == math.inf
    Fragile(on_nonfinite="skip").optimizer.load_state_dict(saved)


def test_an_update_that_finds_units_unmeasured_keeps_its_epoch() -> None:
    training = Fragile(beta_1=None, total_steps=100, on_nonfinite="skip")
    for step in range(10):
        training.step("loss" if step == 4 else "")
    optimizer = training.optimizer
    assert not optimizer.dual.started
    assert (optimizer.epoch.steps, optimizer.epoch.skipped) == (9, 1)
    training.step()
    assert optimizer.dual.k == 2


class Clones(TorchDispatchMode):
    """Counts copies of the weights of `Fragile` and of what a base keeps in their shape."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.clone.default:
            self.count += args[0].shape == (4, 3)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("base", "copies"), [(optim.Adam, 3), (fused, 0)])
def test_a_fused_base_masks_its_step_without_a_copy(base: Any, copies: int) -> None:
    counts = []
    for check_finite in ("every_step", "at_update"):
        training = Fragile(base)
        training.optimizer = PowerALMOptimizer(
            base(training.model.parameters(), lr=0.05),
            training.optimizer.constraints,
            beta_1=1.0,
            check_finite=check_finite,
        )
        training.step()
        with Clones() as clones:
            training.step()
        counts.append(clones.count)
    assert counts[1] - counts[0] == copies  # the weight and two moments


@pytest.mark.parametrize("where", ["proxy", "strict"])
@pytest.mark.parametrize("check_finite", ["every_step", "at_update"])
def test_statistics_that_do_not_reach_the_value_count_too(check_finite: str, where: str) -> None:
    model, constraints = nn.Linear(3, 1), ConstraintRegistry()
    constraints.inequality("rate", size=1, from_statistics=lambda s: s[:1] / s[1:2] - 0.2)
    optimizer = PowerALMOptimizer(
        optim.SGD(model.parameters(), lr=0.1),
        constraints,
        beta_1=1.0,
        check_finite=check_finite,
        on_nonfinite="skip",
    )
    for last in (0.0, math.inf, 0.0):
        optimizer.zero_grad()
        out = model(torch.ones(2, 3))
        good = torch.stack([out.sigmoid().sum(), out.new_tensor(2.0), out.new_tensor(0.0)])
        wrong = torch.stack([*good[:2], out.new_tensor(last)])
        strict = {"rate": wrong.detach()} if where == "strict" else None
        rate = wrong if where == "proxy" else good
        optimizer.augment(out.square().mean(), rate=rate, strict=strict).backward()
        optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    assert state["powalm"]["skipped"] == 1
    optimizer.load_state_dict(state)
    assert math.isfinite(optimizer.update_multipliers().primal_residual)
