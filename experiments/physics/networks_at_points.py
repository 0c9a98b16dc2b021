"""Problems of PECANN-CAPU (Hu, Basir, Senocak 2025) with the same networks, points and epochs.

The residual of the equation is the loss; boundary and initial values are equalities of the zoo at
fixed points. Inputs are standardized and weights are Xavier's, as in the published code.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torch_powalm import ConstraintRegistry, zoo


class Network(nn.Module):
    """Tanh layers over standardized inputs."""

    def __init__(self, low: Tensor, high: Tensor, hidden: int, width: int) -> None:
        super().__init__()
        self.middle, self.deviation = (low + high) / 2, (high - low) / math.sqrt(12)
        sizes = [len(low)] + [width] * hidden
        layers: list[nn.Module] = []
        for n, m in itertools.pairwise(sizes):
            layers += [nn.Linear(n, m), nn.Tanh()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, x: Tensor) -> Tensor:
        """The solution at points, one row each."""
        found: Tensor = self.layers((x - self.middle) / self.deviation)
        return found

    def initialize(self, seed: int) -> None:
        """Xavier weights, zero biases."""
        generator = torch.Generator().manual_seed(seed)
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_normal_(layer.weight, generator=generator)
                nn.init.zeros_(layer.bias)


class Equation(NamedTuple):
    """A problem: network, loss, constraints, and the solution on a test grid."""

    network: Network
    loss: Callable[[], Tensor]
    constraints: ConstraintRegistry
    grid: Tensor
    exact: Tensor

    @torch.no_grad()
    def error(self) -> float:
        """L2 error on the test grid, relative to the solution."""
        return float((self.network(self.grid) - self.exact).norm() / self.exact.norm())


@dataclass(frozen=True)
class Published:
    """What PECANN-CAPU reports, and its setting."""

    build: Callable[[int], Equation]
    epochs: int
    number: float
    what: str


def rarefaction(seed: int) -> Equation:
    """Burgers, u_t + u u_x = 0 on (−1, 1) × (0, 1), from a jump from −0.2 to 0.4 at x = 0."""
    low, high = torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 1.0])
    network = Network(low, high, 3, 20)
    network.initialize(seed)
    x, t = torch.linspace(-1, 1, 130), torch.linspace(0, 1, 65)
    inside = torch.cartesian_prod((x[1:] + x[:-1]) / 2, (t[1:] + t[:-1]) / 2)
    start = torch.stack([x, torch.zeros_like(x)], 1)
    walls = torch.cat([torch.stack([torch.full_like(t, s), t], 1) for s in (-1.0, 1.0)])

    def exact(xt: Tensor) -> Tensor:
        x, t = xt.split(1, 1)
        fan = x / t.clamp(min=1e-12)
        return torch.where(x <= -0.2 * t, -0.2, torch.where(x < 0.4 * t, fan, 0.4))

    def loss() -> Tensor:
        points = inside.clone().requires_grad_()
        u = network(points)
        (slope,) = torch.autograd.grad(u.sum(), points, create_graph=True)
        return (slope[:, 1:] + u * slope[:, :1]).square().mean()

    constraints = ConstraintRegistry()
    zoo.initial(constraints, "initial", network, exact, points=start)
    zoo.boundary(constraints, "walls", network, exact, points=walls)
    grid = torch.cartesian_prod(torch.linspace(-1, 1, 201), torch.linspace(0, 1, 101)[1:])
    return Equation(network, loss, constraints, grid, exact(grid))


def poisson(seed: int, b: float = 50.0) -> Equation:
    """u″ = f on (0, 1) with the solution sin(bx) and its values at both ends."""
    low, high = torch.tensor([0.0]), torch.tensor([1.0])
    network = Network(low, high, 4, 100)
    network.initialize(seed)
    ends = torch.tensor([[0.0], [1.0]])
    inside = torch.linspace(0, 1, 514)[1:-1, None]

    def exact(x: Tensor) -> Tensor:
        return torch.sin(b * x)

    def loss() -> Tensor:
        points = inside.clone().requires_grad_()
        (first,) = torch.autograd.grad(network(points).sum(), points, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), points, create_graph=True)
        return (second + b**2 * exact(points)).square().mean()

    constraints = ConstraintRegistry()
    zoo.boundary(constraints, "ends", network, exact, points=ends)
    grid = torch.linspace(0, 1, 10000)[:, None]
    return Equation(network, loss, constraints, grid, exact(grid))


PUBLISHED = {
    "rarefaction": Published(rarefaction, 10_000, 2.28e-2, "relative L2 error"),
    "poisson": Published(poisson, 100_000, 200.0, "largest over smallest error of five seeds"),
}
