"""A small constrained training and its textbook twin, which differentiates the full Lagrangian."""

import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn.functional import cross_entropy

from torch_powalm import ConstraintRegistry, PowerALMOptimizer

F64 = torch.float64


NU = pytest.mark.parametrize("nu", [0.3, 0.7, 1.0])


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


BASES = {
    "Adam": lambda model: optim.Adam(model.parameters(), lr=0.02),
    "Adam fused": lambda model: optim.Adam(model.parameters(), lr=0.02, fused=True),
    "SGD": lambda model: optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
    "SGD fused": lambda model: optim.SGD(model.parameters(), lr=0.02, momentum=0.9, fused=True),
}


EACH_BASE = pytest.mark.parametrize("base", BASES.values(), ids=BASES)


def cpu_scaler() -> torch.amp.GradScaler:
    """Powers of two, so that scaling is exact."""
    return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)


def adam(model: nn.Module, **settings: Any) -> optim.Adam:
    trained = [p for p in model.parameters() if p.requires_grad]
    return optim.Adam(trained, **{"lr": 0.02, **settings})


def wrapped(model: Net, base: optim.Optimizer | None = None, **settings: Any) -> PowerALMOptimizer:
    settings = {"nu": 0.7, **settings}
    return constrained(adam(model) if base is None else base, registry(model), **settings)


def wrapped_static(model: Net, base: optim.Optimizer | None = None) -> PowerALMOptimizer:
    base = adam(model) if base is None else base
    return constrained(base, registry(model, batch=False), nu=0.7)


def plain_step(model: Net, optimizer: optim.Optimizer, batch: int = 0) -> None:
    """A step of a loop that knows nothing of constraints."""
    optimizer.zero_grad()
    measure(model, *batches()[batch])[0].backward()
    optimizer.step()


class Signs(optim.Optimizer):
    """Moves by the sign of the gradient; its groups have no lr."""

    def __init__(self, params):
        super().__init__(params, {"size": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["size"] * p.grad.sign())


def float32_batches() -> list[tuple[Tensor, Tensor]]:
    return [(x.float(), target) for x, target in batches()]
