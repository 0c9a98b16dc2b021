"""A small training with a block of each kind, by many bases, in many settings, and its state."""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torch_powalm import ConstraintRegistry, PowerALMOptimizer, ProxyValue

F64 = torch.float64


class Foreign(torch.optim.Optimizer):
    """A base that torch does not have."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Follow a running average of the gradient."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state.setdefault("step", 0)
                state.setdefault("mean", torch.zeros_like(p))
                state["step"] += 1
                state["mean"].lerp_(p.grad, 1 - group["rho"])
                p.sub_(group["lr"] * state["mean"])
        return loss


def _two_groups(first: Tensor, *others: Tensor) -> torch.optim.Optimizer:
    groups = [{"params": [first], "lr": torch.tensor(0.01)}, {"params": others, "eps": 1e-6}]
    return torch.optim.AdamW(groups, lr=0.02, betas=(0.5, 0.9))


class Shifted:
    """Held-out data on which every rate is higher than in training."""

    loader = (0, 1, 2)

    def margins(self, constraints: Any, training: Any, multipliers: Any) -> dict[str, Tensor]:
        """Return how much higher."""
        found = {"rate": 0.05, "loss": 0.1}
        return {n: torch.full_like(v, found[n]) for n, v in training.items() if n in found}


BASES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
    "wolfe": lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=3, line_search_fn="strong_wolfe"),
    "two groups": lambda p: _two_groups(*p),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "foreign": lambda p: Foreign(p, {"lr": 0.01, "rho": 0.9}),
}
if hasattr(torch.optim, "Adafactor"):
    BASES["adafactor"] = lambda p: torch.optim.Adafactor(p, lr=0.01)
SETTINGS: dict[str, dict[str, Any]] = {
    "automatic": {},
    "automatic, known length": {"total_steps": 40},
    "given": {"beta_1": 0.5, "omega": 1.2, "y_max": 10.0, "beta_max": 100.0},
    "paper": {"beta_1": {"rows": 1.0, "rate": 2.0, "loss": 0.5}, "sigma": "paper", "nu": 0.6},
    "blocks": {"beta_1": 1.0, "coupling": "block", "updates": 4},
    "margin": {"margin": 0.05, "total_steps": 40},
    "measured margin": {"margin": "auto", "held_out": Shifted(), "beta_1": 0.5, "updates": 5},
    "at update": {"check_finite": "at_update", "total_steps": 40},
    "indexed": {"beta_1": 0.5},
    "warm-up": {"beta_1": 1.0, "warm_up": 9, "on_nonfinite": "skip"},
}


class Training:
    """A small training with a block of each kind.

    Args:
        base: name of the base.
        settings: name of the settings.
    """

    def __init__(self, base: str, settings: str) -> None:
        self.base_name, self.settings_name = base, settings
        generator = torch.Generator().manual_seed(0)
        self.data = torch.randn(60, 6, 3, generator=generator, dtype=F64)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(F64)
        with torch.no_grad():
            for p in self.model.parameters():
                p.copy_(0.5 * torch.randn(p.shape, generator=generator, dtype=F64))
        constraints, model = ConstraintRegistry(), self.model
        constraints.equality("rows", lambda: model[0].weight.square().sum(1) - 1)
        constraints.inequality("rate", size=1, from_statistics=lambda s: s[:1] / s[1:] - 0.2)
        constraints.inequality("loss", size=2)
        self.indexed = settings == "indexed" and base not in ("lbfgs", "wolfe", "foreign")
        if self.indexed:
            constraints.inequality("each", size=9, indexed=True)
        self.base = BASES[base](model.parameters())
        self.optimizer = PowerALMOptimizer(self.base, constraints, **SETTINGS[settings])
        self.done = 0

    def closure(self) -> Tensor:
        """Evaluate the next batch."""
        self.optimizer.zero_grad()
        out = self.model(self.data[self.done % len(self.data)])
        count = torch.tensor([3.0, 3.0], dtype=F64)
        rate = torch.stack([out[:, 0].sigmoid().sum(), out.new_tensor(6.0)])
        values: dict[str, Any] = {"rate": rate, "loss": (out.tanh().mean(0), count)}
        if self.settings_name == "measured margin":
            values["rate"] = ProxyValue(rate, rate.detach() + torch.tensor([0.3, 0.0], dtype=F64))
        if self.indexed:
            index = (torch.arange(6) + 2 * self.done) % 9
            values["each"] = (out.square().sum(1) - 0.1, index)
        loss = self.optimizer.augment(out.square().mean(), **values)
        loss.backward()
        return loss

    def advance(self, steps: int) -> None:
        """Train."""
        for _ in range(steps):
            self.optimizer.step(self.closure)
            self.done += 1

    def finite(self) -> bool:
        """Whether parameters and multipliers are finite."""
        tensors = [*self.model.parameters(), self.optimizer.dual.y]
        numbers = [self.optimizer.dual.beta, self.optimizer.dual.last_norm]
        return all(bool(t.isfinite().all()) for t in tensors) and not any(map(math.isnan, numbers))


def same(a: Any, b: Any) -> bool:
    """Whether two nested states are equal to the last bit; types of numbers may differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.layout is not b.layout or a.is_nested or b.is_nested:
            return False
        a, b = (t.to_dense() if t.is_sparse else t for t in (a, b))
        return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        one, other = (a, b) if isinstance(a, Tensor) else (b, a)
        if one.numel() != 1 or not isinstance(other, int | float):
            return False
        return float(one) in (other, float(torch.tensor(other, dtype=one.dtype)))  # by NAdam
    return bool(a == b) or (a != a and b != b)


_STATES: dict[tuple[str, str, int], dict[str, Any]] = {}  # of trainings that have been run


def trained(base: str, settings: str, steps: int) -> Training:
    """Return a training after some steps; the same one again costs a load."""
    training, key = Training(base, settings), (base, settings, steps)
    if key not in _STATES:
        training.advance(steps)
        state = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
        _STATES[key] = copy.deepcopy(state)
    else:
        training.model.load_state_dict(_STATES[key]["model"])
        training.optimizer.load_state_dict(copy.deepcopy(_STATES[key]["optimizer"]))
    training.done = steps
    return training
