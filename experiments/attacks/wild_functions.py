"""Functions that are nan, inf or discontinuous somewhere, that raise, or have huge values."""

import math
import random
from collections.abc import Callable

import torch
from torch import Tensor

F64 = torch.float64


class UserError(Exception):
    """What the user's function raises."""


# The function, and whether it has a lower bound.
OBJECTIVES: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "square": (lambda x: (x - 1).square().sum(), True),
    "quartic": (lambda x: (x**4).sum() + x @ x, True),
    "sines": (lambda x: x.sin().sum(), True),
    "valley": (lambda x: 100 * (x.sum() - x[0] ** 2) ** 2 + (1 - x[0]) ** 2, True),
    "exponentials": (lambda x: (x.exp() - x).sum(), True),
    "kinks": (lambda x: (x - 0.3).abs().sum(), True),
    "root": (lambda x: (x * x).sum().sqrt(), True),
    "constant": (lambda x: 0.0 * x.sum() + 3.0, True),
    "logarithms": (lambda x: (x - x.log()).sum(), True),
    "roots": (lambda x: (x - 3 * x.sqrt()).sum(), True),
    "quotient": (lambda x: 1 / (x[0] ** 2) + x @ x, True),
    "linear": (lambda x: x.sum() - 2 * x[0], False),
    "hill": (lambda x: -(x @ x), False),
    "pole": (lambda x: 1 / x[0] + 0.1 * x @ x, False),
    "falling": (lambda x: -x.abs().sqrt().sum(), False),
}
# The function, and whether it is linear and has a solution together with the others.
CONSTRAINTS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "plane": (lambda x: x.sum().reshape(1) - 1, True),
    "twice": (lambda x: torch.stack([x.sum() - 1, 2 * x.sum() - 2]), True),
    "sphere": (lambda x: (x @ x - 1).reshape(1), False),
    "product": (lambda x: (x[0] * x[-1] - 1).reshape(1), False),
    "sine": (lambda x: x.sin() - 0.5, False),
    "cube": (lambda x: (x[:1] - 0.5) ** 3, False),
    "none can": (lambda x: (x @ x + 1).reshape(1), False),
    "contradiction": (lambda x: torch.stack([x.sum(), x.sum() - 1]), False),
    "constant": (lambda x: 0.0 * x[:1], False),
    "logarithm": (lambda x: x[:1].log(), False),
    "norm": (lambda x: (x * x).sum().sqrt().reshape(1) - 1, False),
    "exponential": (lambda x: (9 * x[:1]).exp() - 20, False),
}
FAULTS = ["beyond", "raises", "now and then", "noise", "steps", "scale", "user", "never again"]


class Wild:
    """A function with faults.

    Args:
        function: the function without them.
        rng: source of randomness.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], rng: random.Random) -> None:
        self.function, self.calls = function, 0
        self.faults = rng.sample(FAULTS, rng.choice([0, 0, 1, 1, 1, 2]))
        self.radius, self.period = rng.choice([1.5, 3.0, 10.0]), rng.choice([3, 7, 20])
        self.value = rng.choice([math.nan, math.inf, -math.inf])
        self.error = rng.choice([ValueError, ZeroDivisionError, OverflowError, FloatingPointError])
        self.factor = 10.0 ** rng.choice([-200, -30, -8, 8, 30, 100, 150, 290])
        self.noise = torch.Generator().manual_seed(rng.randrange(2**31))
        self.last = rng.choice([2, 9, 40])

    @property
    def steady(self) -> bool:
        """Whether the same x gives the same value."""
        return not {"noise", "now and then", "user", "never again"} & set(self.faults)

    def __call__(self, x: Tensor) -> Tensor:
        """Evaluate."""
        self.calls += 1
        far = bool(torch.linalg.vector_norm(x) > self.radius)
        if "user" in self.faults and self.calls > self.last:
            raise UserError("the user's own")
        if "raises" in self.faults and far:
            raise self.error("outside of the domain")
        result = self.function(x)
        if "steps" in self.faults:
            result = result + (3 * x).sum().floor() - (3 * x).sum()
        if "scale" in self.faults:
            result = self.factor * result
        if "noise" in self.faults:
            result = result + 1e-3 * torch.randn((), generator=self.noise, dtype=F64)
        bad = ("beyond" in self.faults and far) or (
            "now and then" in self.faults and self.calls > 3 and self.calls % self.period == 0
        )
        bad |= "never again" in self.faults and self.calls > self.last
        return result * self.value if bad else result

    def __str__(self) -> str:
        told = {"beyond": f"{self.value} beyond {self.radius}", "scale": f"× {self.factor:g}"}
        return ", ".join(told.get(fault, fault) for fault in self.faults) or "as it is"
