"""Training tasks of the overhead benchmark: a small network and a long vector."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Task:
    """A small network with a loss of the batch and constraints."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(128, 784, generator=generator)
        self.target = torch.randint(10, (128,), generator=generator)
        self.one_hot = nn.functional.one_hot(self.target, 10).float()
        self.model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
        with torch.no_grad():
            for p in self.model.parameters():
                p.copy_(torch.randn(p.shape, generator=generator) / p.shape[-1] ** 0.5)
        self.params = list(self.model.parameters())

    def losses(self) -> Tensor:
        """Loss of every sample."""
        return nn.functional.cross_entropy(self.model(self.x), self.target, reduction="none")

    def loss(self) -> Tensor:
        """Training loss."""
        return self.losses().mean()

    def class_losses(self, losses: Tensor) -> Tensor:
        """Mean loss of each class minus its bound."""
        return losses @ self.one_hot / self.one_hot.sum(0).clamp(min=1) - 0.3

    def functions(self) -> list[Callable[[], Tensor]]:
        """Parameter-only equality constraints, one block each."""
        return [lambda: self.model[0].weight.square().sum(1) - 1]


class Blocks(Task):
    """The same network, with the row norms of the first layer in 64 blocks of 4."""

    def functions(self) -> list[Callable[[], Tensor]]:
        """64 functions of 4 rows each."""
        return [
            lambda i=i: self.model[0].weight[4 * i : 4 * i + 4].square().sum(1) - 1  # type: ignore[misc]
            for i in range(64)
        ]


class Signs(Task):
    """A vector of 100,000 entries with x_i² = 1 and a linear loss."""

    def __init__(self, seed: int = 0, size: int = 100_000) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.c = torch.randn(size, generator=generator)
        self.x = nn.Parameter(torch.randn(size, generator=generator))
        self.params = [self.x]

    def loss(self) -> Tensor:
        """⟨c, x⟩."""
        return self.c @ self.x

    def functions(self) -> list[Callable[[], Tensor]]:
        """x_i² − 1."""
        return [lambda: self.x.square() - 1]
