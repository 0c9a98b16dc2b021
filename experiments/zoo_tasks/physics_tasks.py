"""The heat equation u_t = 0.1 u_xx with the solution sin(πx) exp(−0.1π²t), by a small network."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from experiments.constraint_bench.networks import mlp
from experiments.zoo_tasks.zoo_task import Build, Trial, Values, excess
from torch_powalm import ConstraintRegistry, zoo

PI = math.pi
STEPS = 250


def solution(xt: Tensor) -> Tensor:
    """The solution at points (x, t)."""
    x, t = xt.split(1, 1)
    return torch.sin(PI * x) * torch.exp(-0.1 * PI**2 * t)


def residual(u: nn.Module, xt: Tensor) -> Tensor:
    """u_t − 0.1 u_xx."""
    xt = xt.detach().requires_grad_()
    (first,) = torch.autograd.grad(u(xt).sum(), xt, create_graph=True)
    (second,) = torch.autograd.grad(first[:, 0].sum(), xt, create_graph=True)
    return first[:, 1] - 0.1 * second[:, 0]


def _line(x: float | None, t: float | None, count: int = 21) -> Tensor:
    along = torch.linspace(0, 1, count)
    return torch.stack([along if v is None else torch.full((count,), v) for v in (x, t)], 1)


WALLS = torch.cat([_line(0.0, None), _line(1.0, None)])
START = _line(None, 0.0)
Register = Callable[[ConstraintRegistry, nn.Module, Tensor | None], zoo.Entry]


def heat(
    register: Register,
    points: Tensor,
    goal: Callable[[Tensor], Tensor],
    sampled: bool,
    constraints: ConstraintRegistry,
    generator: torch.Generator,
    observed: Callable[[nn.Module, Tensor], Tensor] = lambda u, x: u(x),
    steps: int = STEPS,
    lr: float = 1e-2,
) -> Trial:
    """Loss: the residual. Constraint: a condition at fixed points, or at random ones of them."""
    u = mlp([2, 16, 16, 1], nn.Tanh, generator)
    entry = register(constraints, u, None if sampled else points)

    def evaluate(inside: Tensor) -> tuple[Tensor, Values]:
        values = {}
        if sampled:
            rows = torch.randint(len(points), (20,), generator=generator)
            values = {entry.name: entry(points[rows])}
        return residual(u, inside).square().mean(), values

    def largest() -> float:
        away = np.abs((observed(u, points) - goal(points)).detach().double().numpy())
        return excess([np.sqrt((away**2).mean()) if sampled else away.max()])

    batches = list(torch.rand(steps, 50, 2, generator=generator))
    return Trial(u, batches, evaluate, largest, 0.05, lr)


def _slope(u: nn.Module, xt: Tensor) -> Tensor:
    """Derivative in x by central differences."""
    step = torch.tensor([1e-2, 0.0])
    return (u(xt + step) - u(xt - step)) / 2e-2


def _right_slope(xt: Tensor) -> Tensor:
    return -PI * torch.exp(-0.1 * PI**2 * xt[:, 1:])


def mass(constraints: ConstraintRegistry, generator: torch.Generator) -> Trial:
    """Transport u_t + u_x = 0 on a ring: the integral over x is the same at all times."""
    u = mlp([3, 16, 16, 1], nn.Tanh, generator)  # inputs cos 2πx, sin 2πx, t
    along = torch.arange(16) / 16
    ring = torch.stack([torch.cos(2 * PI * along), torch.sin(2 * PI * along)], 1)
    times = torch.linspace(0, 1, 9)
    slices = torch.cat(
        [ring.expand(9, 16, 2), times[:, None, None].expand(9, 16, 1)], 2
    ).contiguous()
    zoo.conservation(constraints, "mass", u, slices)

    def evaluate(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Values]:
        points, noise = batch  # noisy observations whose mean drifts in time
        return (u(points).squeeze(1) - points[:, 0] - points[:, 2] - noise).square().mean(), {}

    @torch.no_grad()
    def drift() -> float:
        total = u(slices.flatten(0, 1)).double().view(9, 16).mean(1).numpy()
        return excess(np.abs(total - total[0]))

    batches = []
    for _ in range(STEPS):
        x, t = torch.rand(2, 50, generator=generator)
        points = torch.stack([torch.cos(2 * PI * x), torch.sin(2 * PI * x), t], 1)
        batches.append((points, 0.1 * torch.randn(50, generator=generator)))
    return Trial(u, batches, evaluate, drift, 0.02, lr=1e-2)


def equation(sampled: bool, constraints: ConstraintRegistry, generator: torch.Generator) -> Trial:
    """Loss: noisy observations. Constraint: the residual at most 0.1."""
    u = mlp([2, 16, 16, 1], nn.Tanh, generator)
    points = torch.rand(40, 2, generator=generator)
    entry = zoo.pde_residual(
        constraints, "equation", u, residual, points=None if sampled else points, bound=0.1
    )

    def evaluate(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Values]:
        inside, noise = batch
        loss = (u(inside) - solution(inside) - noise).square().mean()
        return loss, {"equation": entry(inside)} if sampled else {}

    def largest() -> float:
        grid = torch.cartesian_prod(torch.linspace(0, 1, 15), torch.linspace(0, 1, 15))
        away = residual(u, grid if sampled else points).detach().double().numpy()
        return excess([(np.sqrt((away**2).mean()) if sampled else np.abs(away).max()) - 0.1])

    batches = [
        (torch.rand(50, 2, generator=generator), 0.3 * torch.randn(50, 1, generator=generator))
        for _ in range(STEPS)
    ]
    return Trial(u, batches, evaluate, largest, 0.02, lr=1e-2)


PHYSICS: dict[str, Build] = {"conservation": mass}
for _sampled in (False, True):
    _how = " (sampled)" if _sampled else " (points)"
    PHYSICS |= {
        f"boundary{_how}": partial(
            heat,
            lambda c, u, p: zoo.boundary(c, "walls", u, points=p),
            WALLS,
            lambda xt: torch.zeros(len(xt), 1),
            _sampled,
        ),
        f"initial{_how}": partial(
            heat,
            lambda c, u, p: zoo.initial(c, "start", u, solution, points=p),
            START,
            solution,
            _sampled,
            steps=500,
        ),
        f"normal_derivative{_how}": partial(
            heat,
            lambda c, u, p: zoo.normal_derivative(
                c, "flux", u, torch.tensor([1.0, 0.0]), _right_slope, points=p
            ),
            _line(1.0, None),
            _right_slope,
            _sampled,
            observed=_slope,
            steps=500,
            lr=5e-3,
        ),
        f"pde_residual{_how}": partial(equation, _sampled),
    }
