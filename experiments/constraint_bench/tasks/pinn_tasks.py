"""PDEs: the residual is the loss, initial and boundary values are equalities of the parameters.

The merit is the error of the solution on a grid, relative to its size (L2). Training and testing
are the same for them.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from experiments.constraint_bench.networks import mlp
from experiments.constraint_bench.task import Constraint, Evaluation, Task, Training

Residual = Callable[[nn.Module, Tensor], Tensor]
Solution = Callable[[Tensor], Tensor]
PI = math.pi


def poisson(generator: torch.Generator) -> Training:
    """−u'' = f on (0, 1) with values at both ends."""

    def solution(x: Tensor) -> Tensor:
        return torch.sin(2 * PI * x) + 0.2 * torch.sin(5 * PI * x) + 1 - 1.5 * x

    def residual(u: nn.Module, x: Tensor) -> Tensor:
        f = 4 * torch.sin(2 * PI * x) + 5 * torch.sin(5 * PI * x)
        return _derivatives(u, x)[2] / PI**2 + f

    ends = Condition("ends", torch.tensor([[0.0], [1.0]]))
    return _training(1, residual, solution, _box([0], [1]), [ends], 64, 1200, generator)


def heat(generator: torch.Generator) -> Training:
    """u_t = 0.1 u_xx; the initial values are in units of 1e-3, the boundary values of 1e4."""

    def solution(xt: Tensor) -> Tensor:
        x, t = xt.split(1, 1)
        return sum(
            a * torch.sin(k * PI * x) * torch.exp(-0.1 * (k * PI) ** 2 * t)
            for k, a in ((1, 1.0), (2, 0.5))
        )

    def residual(u: nn.Module, xt: Tensor) -> Tensor:
        _, first, second = _derivatives(u, xt)
        return first[:, 1] - 0.1 * second[:, 0]

    initial = Condition("initial", _line([0, 0], [1, 0], 31), 1e3)
    walls = torch.cat([_line([0, 0], [0, 1], 15), _line([1, 0], [1, 1], 15)])
    conditions = [initial, Condition("boundary", walls, 1e-4)]
    return _training(2, residual, solution, _box([0, 0], [1, 1]), conditions, 64, 1200, generator)


def burgers(generator: torch.Generator) -> Training:
    """u_t + u u_x = 0: a rarefaction that spreads from a ramp of width 0.4."""

    def solution(xt: Tensor) -> Tensor:
        x, t = xt.split(1, 1)
        return (x / (0.4 + t)).clamp(0, 1)

    def residual(u: nn.Module, xt: Tensor) -> Tensor:
        xt = xt.detach().requires_grad_()
        value = u(xt)
        first = torch.autograd.grad(value.sum(), xt, create_graph=True)[0]
        return first[:, 1:] + value * first[:, :1]

    initial = Condition("initial", _line([-0.5, 0], [1.5, 0], 41), tolerance=0.08)
    left = Condition("left", _line([-0.5, 0], [-0.5, 1], 11), tolerance=0.08)
    box = _box([-0.5, 0], [1.5, 1])
    return _training(2, residual, solution, box, [initial, left], 100, 1200, generator)


def helmholtz(generator: torch.Generator) -> Training:
    """Δu + u = q on a square with values on its boundary."""

    def solution(xy: Tensor) -> Tensor:
        x, y = xy.split(1, 1)
        return torch.sin(2 * x + 0.5) * torch.cos(2 * y)

    def residual(u: nn.Module, xy: Tensor) -> Tensor:
        value, _, second = _derivatives(u, xy)
        return (second.sum(1, keepdim=True) + value + 7 * solution(xy)) / 7

    corners = [[-1.0, -1], [1, -1], [1, 1], [-1, 1]]
    sides = [_line(a, b, 17)[:-1] for a, b in zip(corners, corners[1:] + corners[:1], strict=True)]
    edge = Condition("boundary", torch.cat(sides))
    return _training(2, residual, solution, _box([-1, -1], [1, 1]), [edge], 64, 1200, generator)


class Condition:
    """Values that the solution has at given points, as equalities in given units."""

    def __init__(
        self, name: str, points: Tensor, factor: float = 1.0, tolerance: float = 0.03
    ) -> None:
        self.name, self.points, self.factor, self.tolerance = name, points, factor, tolerance

    def constraint(self, u: nn.Module, solution: Solution) -> Constraint:
        """The block of equalities."""
        goal = solution(self.points).squeeze(1)

        def values() -> Tensor:
            return self.factor * (u(self.points).squeeze(1) - goal)

        return Constraint(self.name, False, len(goal), self.factor * self.tolerance, fn=values)


def _training(
    inputs: int,
    residual: Residual,
    solution: Solution,
    box: tuple[Tensor, Tensor],
    conditions: list[Condition],
    points: int,
    steps: int,
    generator: torch.Generator,
) -> Training:
    u = mlp([inputs, 20, 20, 20, 1], nn.Tanh, generator)
    low, high = box
    blocks = [condition.constraint(u, solution) for condition in conditions]
    batches = [
        low + (high - low) * torch.rand(points, inputs, generator=generator) for _ in range(steps)
    ]
    axes = [torch.linspace(a, b, 400 if inputs == 1 else 40) for a, b in zip(*box, strict=True)]
    grid = torch.cartesian_prod(*axes).reshape(-1, inputs)
    exact = solution(grid)

    def evaluate(batch: Tensor) -> Evaluation:
        return Evaluation(residual(u, batch).square().mean(), {}, {})

    @torch.no_grad()
    def merit(split: str) -> float:
        return ((u(grid) - exact).norm() / exact.norm()).item()

    @torch.no_grad()
    def values(split: str) -> dict[str, Tensor]:
        return {block.name: block.fn() for block in blocks if block.fn is not None}

    return Training(u, blocks, batches, evaluate, merit, values)


def _derivatives(u: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """u, its gradient, and its second derivatives along each input."""
    x = x.detach().requires_grad_()
    value = u(x)
    first = torch.autograd.grad(value.sum(), x, create_graph=True)[0]
    second = [
        torch.autograd.grad(first[:, i].sum(), x, create_graph=True)[0][:, i]
        for i in range(x.shape[1])
    ]
    return value, first, torch.stack(second, 1)


def _box(low: list[float], high: list[float]) -> tuple[Tensor, Tensor]:
    return torch.tensor(low, dtype=torch.float32), torch.tensor(high, dtype=torch.float32)


def _line(start: list[float], end: list[float], count: int) -> Tensor:
    a, b = _box(start, end)
    return a + torch.linspace(0, 1, count).unsqueeze(1) * (b - a)


_task = partial(Task, kind="pinn", steps=1200, steps_per_epoch=50, lr=1e-2, resolution=0.05)
TASKS = [
    _task("pinn_poisson", build=poisson, sgd_lr=2e-3),
    _task("pinn_heat_mixed_units", build=heat, sgd_lr=0.03),
    _task("pinn_burgers", build=burgers, sgd_lr=0.02),
    _task("pinn_helmholtz", build=helmholtz, sgd_lr=0.03),
]
