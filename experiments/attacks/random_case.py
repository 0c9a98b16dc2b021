"""What a random training consists of: base, blocks, settings, precision and accidents."""

import random
from collections.abc import Callable
from typing import Any

import torch

from experiments.attacks.hand_loop import F64, HandBlock

BASES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.02),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "decay": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.5, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-4),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, eps=1e-4),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, eps=1e-4),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01, eps=1e-4),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01, eps=1e-4),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01, eps=1e-4),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.02, eps=1e-4),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5, eps=1e-4),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.005, momentum=0.5, eps=1e-3),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.02),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.005),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
    "wolfe": lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=4, line_search_fn="strong_wolfe"),
}
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "constant": lambda o: torch.optim.lr_scheduler.ConstantLR(o, factor=1.0),
    "steps": lambda o: torch.optim.lr_scheduler.StepLR(o, 3, gamma=0.7),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 30),
    "linear": lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.2, 1.0, total_iters=8),
}


class Case:
    """A random training.

    Args:
        rng: source of randomness.
    """

    def __init__(self, rng: random.Random) -> None:
        pick = rng.choice
        self.base, self.at = pick(list(BASES)), 0  # and the step that is compared
        self.searches = self.base in ("lbfgs", "wolfe")
        self.dtype = pick([F64, F64, F64, F64, torch.float32, torch.bfloat16])
        if self.searches or self.base == "rprop":
            self.dtype = F64  # a rounding error may change the outcome of a search, or a sign
        self.schedule = pick(list(SCHEDULES))
        self.automatic = not self.searches and rng.random() < 0.3
        # A search makes rounding errors some ten times larger with every step.
        self.seed, self.steps = rng.randrange(2**31), rng.randrange(3, 9 if self.searches else 40)
        self.parts = 1 if self.searches else pick([1, 1, 2, 3])
        self.window = self.parts > 1 and pick([True, False])
        self.every = rng.randrange(1, 8)
        self.two_groups = not self.searches and pick([True, False])
        self.clipped = not self.searches and rng.random() < 0.2
        self.closure = self.searches or (not self.clipped and rng.random() < 0.2)
        self.scaled = not self.closure and self.dtype is F64 and rng.random() < 0.15
        self.projected = not self.searches and rng.random() < 0.2
        self.saved = {s for s in range(1, self.steps) if rng.random() < 0.04}
        self.spoiled = {s for s in range(self.steps) if rng.random() < 0.04}
        self.settings = self._settings(rng)
        if self.settings.get("on_nonfinite") != "skip" or self.parts > 1 or self.scaled:
            self.spoiled = set()
        self.blocks = self._blocks(rng)
        if isinstance(self.settings.get("beta_1"), str):
            names = [b.name for b in self.blocks]
            self.settings["beta_1"] = {n: pick([0.3, 1.0, 4.0]) for n in names}
        self.strict = {b.name for b in self.blocks if b.kind != "static" and rng.random() < 0.3}
        batch = [b for b in self.blocks if b.kind != "static"]
        self.samples = pick([1.0, 1.0, 2.5]) if batch and not self.window else 1.0

    def _settings(self, rng: random.Random) -> dict[str, Any]:
        pick = rng.choice
        found: dict[str, Any] = {"nu": pick([0.3, 0.5, 0.8, 0.8, 1.0])}
        if self.automatic:
            found["total_steps"] = pick([self.steps, 40, 100])
        else:
            found["beta_1"] = pick([0.1, 1.0, 1.0, 10.0, "by name"])
            found["updates"] = pick(["epoch", rng.randrange(1, 6)])
        if rng.random() < 0.5:
            found["coupling"] = pick(["all", "block"])
        if rng.random() < 0.5 and not self.automatic:
            found["omega"] = pick([1.0, 1.05, 1.5])
            found["beta_max"] = pick([20.0, 100.0])
        if rng.random() < 0.4 and not self.automatic:
            found["sigma"] = pick(["penalty", "paper", "sqrt", "pi"])
            found["sigma_1"] = pick([0.1, 1.0, 10.0])
        if rng.random() < 0.2:
            found["y_max"] = pick([0.05, 1.0])
        if rng.random() < 0.2 and not self.automatic:
            found["sufficient_decrease"] = pick([0.5, 0.9])
        if rng.random() < 0.2:
            found["warm_up"] = rng.randrange(1, 6)
        if rng.random() < 0.3:
            found["on_nonfinite"] = "skip"
        if rng.random() < 0.2:
            found["margin"] = pick([0.03, 0.2])
        if rng.random() < 0.2 and not self.searches:
            found["check_finite"] = "at_update"
        return found

    def _blocks(self, rng: random.Random) -> list[HandBlock]:
        kinds = ["rows", "total", "bias", "value", "counts", "rate", "grid"]
        chosen = rng.sample(kinds, rng.randrange(1, 5))
        found = []
        for name in kinds:  # those of the parameters first, as in the vector
            if name in chosen:
                size = {"rows": 4, "bias": 2, "counts": 3}.get(name, 1)
                kind = {"value": "value", "counts": "counts", "rate": "statistics"}.get(name, "")
                latest = name == "grid"
                kind = kind or ("value" if latest else "static")
                scale = rng.choice([None, None, 0.5, 3.0])
                inequality = rng.random() < 0.6
                found.append(HandBlock(name, inequality, size, kind, latest, scale))
        return found

    def __str__(self) -> str:
        blocks = [f"{b.name} {'≤' if b.inequality else '='} {b.scale}" for b in self.blocks]
        names = "dtype schedule automatic steps parts window every two_groups clipped closure"
        names += " scaled projected saved spoiled strict samples settings"
        told = ", ".join(f"{n} {getattr(self, n)}" for n in names.split() if getattr(self, n))
        return f"{self.base}, {blocks}, {told}"
