"""Under check_finite="at_update" a step reads nothing from the device, and an update reads once."""

import itertools
from typing import Any

import pytest
import torch
from torch import nn, optim

from tests.training.on_device.emulated_device import EmulatedDevice
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

pytestmark = pytest.mark.filterwarnings("ignore::torch_powalm.ConstraintWarning")


class Training:
    """A small training with any kinds of blocks."""

    def __init__(self, kinds: tuple[str, ...], base: Any = optim.Adam, **settings: Any) -> None:
        torch.manual_seed(0)
        self.model = model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        model.to(settings.pop("device", "cpu"))
        self.kinds, constraints = kinds, ConstraintRegistry()
        if "rows" in kinds:
            constraints.equality("rows", lambda: model[0].weight.square().sum(1) - 1)
        if "many" in kinds:
            constraints.inequality("many", lambda: 0.1 - model[0].weight.abs().repeat(2, 2))
        if "mean" in kinds:
            constraints.inequality("mean", size=1)
        if "counts" in kinds:
            constraints.inequality("counts", size=3)
        if "rate" in kinds:
            constraints.inequality("rate", size=1, from_statistics=lambda s: s[:1] / s[1:] - 0.3)
        if "sign" in kinds:
            constraints.equality("sign", size=1)
        groups = settings.pop("groups", {"lr": 0.01})
        self.optimizer = PowerALMOptimizer(
            base(model.parameters(), **groups), constraints, **settings
        )
        self.generator = torch.Generator().manual_seed(1)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(9, 6, generator=self.generator)
        return x, torch.randint(0, 3, (9,), generator=self.generator)

    def step(self, factor: float = 1.0) -> None:
        x, target = self.batch()
        self.optimizer.zero_grad()
        out = self.model(x) * factor
        losses = nn.functional.cross_entropy(out, target, reduction="none")
        values: dict[str, Any] = {}
        strict = None
        if "mean" in self.kinds:
            values["mean"] = losses.mean().reshape(1) - 0.5
        if "counts" in self.kinds:
            groups = nn.functional.one_hot(target, 3).to(out)
            count = groups.sum(0)
            values["counts"] = losses @ groups / count.clamp(min=1) - 0.7, count
        if "rate" in self.kinds:
            hit = torch.sigmoid(out[:, 0])
            values["rate"] = torch.stack([hit.sum(), torch.ones_like(hit).sum()])
        if "sign" in self.kinds:
            values["sign"] = torch.tanh(out[:, 1]).mean().reshape(1)
            strict = {"sign": (out[:, 1] > 0).float().mean().reshape(1) - 0.5}
        loss = losses.mean()
        if values:
            loss = self.optimizer.augment(loss, strict=strict, **values)
        loss.backward()
        self.optimizer.step()


def assert_close(one: Training, other: Training, **tolerances: float) -> None:
    """Compare the multipliers and the parameters of two trainings."""
    torch.testing.assert_close(one.optimizer.dual.y, other.optimizer.dual.y, **tolerances)
    for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, **tolerances)


EVERY = ("rows", "many", "mean", "counts", "rate", "sign")
KINDS = [("rows",), ("many",), ("mean",), ("counts",), ("rate",), ("sign",), EVERY]


def reads_by_step(training: Training, steps: int, patch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return what every step reads. Adam keeps its counter of steps on the host, and reads it."""
    found, params = [], list(training.model.parameters())
    for p in params:
        if isinstance(training.optimizer.base, optim.Adam):
            zeros = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            training.optimizer.state[p] = {"step": torch.tensor(0.0), **zeros}
    with EmulatedDevice(patch) as device:
        for _ in range(steps):
            device.put_on_host(s["step"] for s in training.optimizer.state.values() if "step" in s)
            training.step()
            found.append(list(device.reads))
            device.reads.clear()
    return found


@pytest.mark.parametrize("coupling", ["all", "block"])
@pytest.mark.parametrize("nu", [0.5, 1.0])
@pytest.mark.parametrize("kinds", KINDS, ids="+".join)
def test_a_step_reads_nothing_and_an_update_once(
    kinds: tuple[str, ...], nu: float, coupling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"nu": nu, "coupling": coupling, "check_finite": "at_update"}
    training = Training(kinds, beta_1=1.0, updates=4, **settings)
    found = reads_by_step(training, 12, monkeypatch)
    updates = [3, 7, 11]
    assert all(len(found[i]) == 1 for i in updates), found
    assert not any(found[i] for i in range(12) if i not in updates), found


@pytest.mark.parametrize("sigma", ["penalty", "paper", "sqrt", "pi"])
def test_no_dual_rule_reads_in_a_step(sigma: str, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(EVERY, beta_1=1.0, updates=3, sigma=sigma, check_finite="at_update")
    assert [len(reads) for reads in reads_by_step(training, 6, monkeypatch)] == [0, 0, 1, 0, 0, 1]


@pytest.mark.parametrize("base", [optim.Adam, optim.SGD])
def test_measuring_steps_read_nothing(base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(EVERY, base, total_steps=100, check_finite="at_update")
    found = [len(reads) for reads in reads_by_step(training, 31, monkeypatch)]
    assert [i for i, reads in enumerate(found) if reads] == [9, 19, 29]  # units, then updates
    assert max(found) == 1


@pytest.mark.parametrize("rate", [0.01, "tensor"])
@pytest.mark.parametrize("base", [optim.Adam, optim.SGD])
def test_both_modes_train_alike(base: Any, rate: Any) -> None:
    trained = []
    for check_finite in ("every_step", "at_update"):
        lr = torch.tensor(0.01) if rate == "tensor" else rate
        training = Training(
            EVERY, base, total_steps=100, check_finite=check_finite, groups={"lr": lr}
        )
        for _ in range(60):
            training.step()
        trained.append(training)
    one, other = trained
    assert_close(one, other, rtol=1e-3, atol=1e-5)
    assert one.optimizer.dual.k == other.optimizer.dual.k > 3


@pytest.mark.parametrize(
    ("nu", "coupling"), list(itertools.product([0.3, 0.8, 1.0], ["all", "block"]))
)
def test_both_modes_agree_to_rounding(nu: float, coupling: str) -> None:
    trained = []
    for check_finite in ("every_step", "at_update"):
        training = Training(
            EVERY, beta_1=2.0, nu=nu, coupling=coupling, updates=5, check_finite=check_finite
        )
        training.model.double()
        for p in training.model.parameters():
            p.grad = None
        training.generator = torch.Generator().manual_seed(1)
        training.batch = lambda t=training: tuple(  # type: ignore[method-assign]
            v.double() if v.is_floating_point() else v for v in Training.batch(t)
        )
        for _ in range(15):
            training.step()
        trained.append(training)
    one, other = trained
    assert_close(one, other, rtol=1e-7, atol=1e-9)
