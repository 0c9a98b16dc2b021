"""Blocks with one constraint per data point, given as (value, index)."""

import copy
import io
import math
from typing import Any

import pytest
import torch
from torch import nn, optim

from tests.training.on_device.emulated_device import EmulatedDevice
from torch_powalm import ConstraintRegistry, PowerALMOptimizer
from torch_powalm.training.indexed.indexed_multipliers import IndexedMultipliers

pytestmark = pytest.mark.filterwarnings("ignore::torch_powalm.ConstraintWarning")
F64 = torch.float64


class Training:
    """A regression in which every sample's error is bounded."""

    def __init__(self, n: int = 12, indexed: bool = True, bound: float = 0.3, **settings: Any):
        torch.manual_seed(0)
        self.n, self.indexed, self.bound = n, indexed, bound
        self.model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1)).to(F64)
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(n, 3, generator=generator, dtype=F64)
        self.target = torch.randn(n, 1, generator=generator, dtype=F64)
        self.constraints = ConstraintRegistry()
        kind = settings.pop("kind", "inequality")
        extra = {"indexed": True} if indexed else {"latest": True}
        getattr(self.constraints, kind)("sample", size=n, **extra)
        if settings.pop("static", False):
            self.constraints.inequality("small", lambda: self.model[2].weight.square().sum() - 4)
        base = settings.pop("base", optim.Adam)(self.model.parameters(), lr=0.01)
        self.optimizer = PowerALMOptimizer(base, self.constraints, **settings)
        self.generator = torch.Generator().manual_seed(2)

    def step(self, index: torch.Tensor) -> None:
        error = (self.model(self.x[index]) - self.target[index]).square().sum(1)
        value = error - self.bound
        given = (value, index) if self.indexed else value
        self.optimizer.zero_grad()
        self.optimizer.augment(error.mean(), sample=given).backward()
        self.optimizer.step()

    def epoch(self, batch: int = 4) -> None:
        order = torch.randperm(self.n, generator=self.generator)
        for index in order.split(batch):
            self.step(index)


@pytest.mark.parametrize("kind", ["equality", "inequality"])
@pytest.mark.parametrize("nu", [0.4, 1.0])
@pytest.mark.parametrize("sigma", ["penalty", "sqrt", "pi"])
def test_with_all_entries_in_a_batch_it_is_the_block_without_index(
    kind: str, nu: float, sigma: str
) -> None:
    trained = []
    for indexed in (True, False):
        settings = {"nu": nu, "sigma": sigma, "kind": kind, "beta_1": 2.0, "sigma_1": 0.5}
        training = Training(indexed=indexed, **settings)
        for _ in range(6):
            for _ in range(4):
                training.step(torch.arange(12))
            training.optimizer.update_multipliers()
        trained.append(training)
    one, other = trained
    y, expected = (t.optimizer.multipliers()["sample"] for t in trained)
    assert expected.norm() > 0
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-12)
    for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)
    for field in ("k", "primal_residual", "beta", "sigma", "y_norm"):
        rows = [t.optimizer.history.rows[-1].record for t in trained]
        assert getattr(rows[0], field) == pytest.approx(getattr(rows[1], field), rel=1e-9)


def sums_of(part: IndexedMultipliers) -> tuple[float, float]:
    """‖(A, u)‖² with the slacks of the last update, and ‖max(B, 0)‖²; unseen entries count 0."""
    value, lower = part.value * part.scale, -part.y * part.slack / part.scale
    u, violation = value.maximum(lower).nan_to_num(), value.clamp(min=0).nan_to_num()
    return float(u.square().sum()), float(violation.square().sum())


def test_the_norm_is_kept_up_to_date() -> None:
    training = Training(nu=0.5, beta_1=1.0)
    training.epoch()
    training.optimizer.update_multipliers()
    for _ in range(2):
        training.epoch(5)
        part = training.constraints.indexed["sample"]
        assert (part.squares, part.excess) == pytest.approx(sums_of(part), rel=1e-9)


def test_sums_of_squares_are_accumulated_in_float64() -> None:
    training = Training(nu=0.5, beta_1=1.0, check_finite="at_update")
    training.model.float()
    training.x, training.target = training.x.float(), training.target.float()
    training.epoch()
    training.optimizer.update_multipliers()
    training.epoch()
    part = training.constraints.indexed["sample"]
    assert (part.y.dtype, part.squares.dtype, part.excess.dtype) == (torch.float32, F64, F64)


def test_an_index_may_come_twice() -> None:
    training = Training(nu=0.5, beta_1=1.0)
    training.step(torch.tensor([3, 3, 5, 3]))
    part = training.constraints.indexed["sample"]
    assert part.fresh.nonzero().flatten().tolist() == [3, 5]
    assert part.squares == pytest.approx(sums_of(part)[0], rel=1e-9)


def test_only_entries_of_a_batch_move() -> None:
    training = Training(beta_1=1.0, bound=-1.0)
    training.step(torch.tensor([1, 4]))
    training.optimizer.update_multipliers()
    y = training.optimizer.multipliers()["sample"]
    assert set(y.nonzero().flatten().tolist()) <= {1, 4}
    before = y.clone()
    training.step(torch.tensor([4, 7]))
    training.optimizer.update_multipliers()
    y = training.optimizer.multipliers()["sample"]
    assert y[1] == before[1]
    assert y[7] > 0


@pytest.mark.parametrize("check_finite", ["every_step", "at_update"])
def test_with_nothing_set_it_becomes_feasible(check_finite: str) -> None:
    training = Training(check_finite=check_finite)
    training.optimizer.param_groups[0]["lr"] = 0.02
    training.epoch()
    assert training.constraints.violations()["sample"].max > 1
    for _ in range(240):
        training.epoch()
        training.optimizer.update_multipliers()
    assert training.constraints.violations()["sample"].max < 0.02
    assert training.optimizer.epoch.skipped == 0


@pytest.mark.parametrize("settings", [{"beta_1": 1.0, "nu": 0.6}, {"total_steps": 60}])
def test_a_resume_continues_bit_for_bit(settings: dict[str, Any]) -> None:
    whole, first, second = (Training(static=True, **settings) for _ in range(3))
    for training in (whole, first):
        for _ in range(7):
            training.epoch()
            training.optimizer.update_multipliers()
        training.step(torch.tensor([0, 5]))
    file = io.BytesIO()
    torch.save([first.optimizer.state_dict(), first.model.state_dict()], file)
    file.seek(0)
    state, weights = torch.load(file, weights_only=True)
    second.model.load_state_dict(weights)
    second.optimizer.load_state_dict(state)
    second.generator.set_state(whole.generator.get_state())
    for training in (whole, second):
        for _ in range(4):
            training.epoch()
            training.optimizer.update_multipliers()
    for p, q in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(p, q)
    for name, y in whole.optimizer.multipliers().items():
        assert torch.equal(y, second.optimizer.multipliers()[name])


def test_a_state_must_fit() -> None:
    training, other = Training(beta_1=1.0), Training(beta_1=1.0)
    training.epoch()
    state = copy.deepcopy(training.optimizer.state_dict())
    state["powalm"]["indexed"]["sample"]["y"] = torch.zeros(3, dtype=F64)
    other.epoch()
    with pytest.raises(ValueError, match="must have 12 entries, got 3"):
        other.optimizer.load_state_dict(state)


def test_a_step_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"beta_1": 1.0, "nu": 0.5, "base": optim.SGD, "check_finite": "at_update"}
    training = Training(updates=3, static=True, **settings)
    order, found = torch.arange(12), []
    with EmulatedDevice(monkeypatch) as device:
        for i in range(6):
            training.step(order[i : i + 4])
            found.append(len(device.reads))
            device.reads.clear()
    assert found == [0, 0, 1, 0, 0, 1]


@pytest.mark.parametrize("check_finite", ["every_step", "at_update"])
def test_values_that_are_not_finite_are_left_out(check_finite: str) -> None:
    training = Training(beta_1=1.0, on_nonfinite="skip", check_finite=check_finite)
    training.epoch()
    before = copy.deepcopy(training.optimizer.state_dict())
    training.x[2] = math.nan
    training.step(torch.tensor([2, 3]))
    after = training.optimizer.state_dict()
    assert after["powalm"].pop("skipped") == before["powalm"].pop("skipped") + 1
    torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)
    training.optimizer.gradient.finite.on_nonfinite = "raise"

    def step_and_update() -> None:
        training.step(torch.tensor([2, 3]))
        training.optimizer.update_multipliers()

    with pytest.raises(FloatingPointError, match="constraint 'sample' must be finite"):
        step_and_update()


@pytest.mark.parametrize("wrong", [-1, 12])
def test_an_index_out_of_range_that_may_not_be_read_is_told_at_the_update(wrong: int) -> None:
    training = Training(beta_1=1.0, check_finite="at_update", nu=0.5)
    training.epoch()
    before = copy.deepcopy(training.model.state_dict())
    error = training.model(training.x[:2]).square().sum(1)
    training.optimizer.zero_grad()
    given = error - 0.3, torch.tensor([3, wrong])
    training.optimizer.augment(error.mean(), sample=given).backward()
    training.optimizer.step()
    torch.testing.assert_close(training.model.state_dict(), before, rtol=0, atol=0)
    with pytest.raises(FloatingPointError, match="constraint 'sample' must be finite"):
        training.optimizer.update_multipliers()


def test_reports_have_quantiles_and_the_worst_entries() -> None:
    training = Training(beta_1=1.0)
    training.step(torch.arange(11))
    found = training.constraints.violations()["sample"]
    value = training.constraints.values()["sample"]
    assert math.isnan(value[11])
    assert found.never_seen == (11,)
    excess = value[:11].clamp(min=0)
    assert found.max == excess.max()
    assert found.norm == pytest.approx(float(excess.norm()))
    assert found.worst[0] == int(excess.argmax())
    assert found.quantiles is not None
    assert found.quantiles[0.5] == pytest.approx(float(excess.median()))
    training.optimizer.update_multipliers()
    report = training.optimizer.report()
    assert report["sample"].status == "violated"
    assert report["sample"].entry == found.worst[0]
    assert report["sample"].worst == found.worst
    assert f"; worst entries {found.worst[0]}" in str(report)


def test_a_report_lists_no_worst_entries_where_all_are_met() -> None:
    training = Training(beta_1=1.0, bound=1e3)
    training.epoch()
    assert str(training.optimizer.report()).endswith("99 % by 0")


def test_misuse_raises_by_name() -> None:
    training, constraints = Training(beta_1=1.0), ConstraintRegistry()
    augment, loss = training.optimizer.augment, torch.zeros((), requires_grad=True)
    value = torch.zeros(2, dtype=F64, requires_grad=True)
    with pytest.raises(TypeError, match=r"'sample' must be \(value, index\), got Tensor"):
        augment(loss, sample=value)
    with pytest.raises(TypeError, match="index of 'sample' must be a tensor of integers, got"):
        augment(loss, sample=(value, value))
    with pytest.raises(TypeError, match="'sample' must be a floating-point tensor, got list"):
        augment(loss, sample=([1.0], torch.tensor([0])))
    with pytest.raises(ValueError, match="index of 'sample' must have 2 entries, got 1"):
        augment(loss, sample=(value, torch.tensor([0])))
    with pytest.raises(ValueError, match=r"index of 'sample' must be in \[0, 12\), got 12"):
        augment(loss, sample=(value, torch.tensor([0, 12])))
    with pytest.raises(ValueError, match=r"index of 'sample' must be in \[0, 12\), got -1"):
        augment(loss, sample=(value, torch.tensor([0, -1])))
    with pytest.raises(ValueError, match="constraint 'sample' must have at least one entry, got"):
        augment(loss, sample=(value[:0], torch.tensor([], dtype=torch.long)))
    with pytest.raises(TypeError, match="index of 'sample' must be a tensor of integers, got list"):
        augment(loss, sample=(value, [0, 1]))
    with pytest.raises(
        ValueError, match="constraint 'sample' must have a gradient, got a constant"
    ):
        augment(loss, sample=(value.detach(), torch.tensor([0, 1])))
    with pytest.raises(KeyError, match="augment must have a value for 'sample', got none"):
        augment(loss)
    with pytest.raises(RuntimeError, match="step needs the batch constraints 'sample'"):
        training.optimizer.step()
    with pytest.raises(ValueError, match="size of 'a' must be given with indexed, got None"):
        constraints.inequality("a", lambda: loss, indexed=True)
    with pytest.raises(ValueError, match="indexed and latest of 'a' are mutually exclusive"):
        constraints.inequality("a", size=3, latest=True, indexed=True)
    search = Training(beta_1=1.0, base=lambda params, lr: optim.LBFGS(params))
    with pytest.raises(ValueError, match="indexed constraints need a base without a search"):
        search.optimizer.step(lambda: None)
