"""A small classifier with all kinds of blocks and its data, for `crashes` and `soak`."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from torch_powalm import ConstraintRegistry, PowerALMOptimizer, prox

BATCHES, SAMPLES = 8, 16  # of an epoch, of a batch


class Net(nn.Module):
    """A classifier with all kinds of blocks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        self.constraints = ConstraintRegistry()
        self.constraints.equality("unit_rows", lambda: self.net[0].weight.square().sum(1) - 1)
        self.constraints.inequality("class_loss", size=3)
        self.constraints.equality("rate", size=1, from_statistics=lambda s: s[:1] / s[1:] - 0.4)

    def optimizer(self, omega: float = 1.1) -> PowerALMOptimizer:
        """SGD with momentum, and a prox term."""
        base = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
        terms = {self.net[2].bias: prox.NonNegative()}
        return PowerALMOptimizer(base, self.constraints, nu=0.7, omega=omega, prox=terms)

    def measure(self, x: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Loss and values of the batch blocks."""
        target = x[:, :3].argmax(1)
        logits = self.net(x)
        losses = cross_entropy(logits, target, reduction="none")
        count = torch.zeros(3).index_add(0, target, torch.ones(len(x)))
        value = torch.zeros(3).index_add(0, target, losses) / count.clamp(min=1) - 0.5
        rate = torch.cat([logits[:, :1].sigmoid().sum(0), torch.tensor([float(len(x))])])
        return losses.mean(), {"class_loss": (value, count), "rate": rate}


class Loader:
    """Batches that depend on epoch, position and rank; the position can be resumed.

    The epoch is set from outside, as Lightning does with torch's samplers.
    """

    def __init__(self, rank: int = 0) -> None:
        self.epoch, self.done, self.rank = 0, 0, rank
        self.sampler = self

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.epoch = epoch

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[Tensor]:
        self.done %= BATCHES
        while self.done < BATCHES:
            self.done += 1
            seed = (self.epoch * BATCHES + self.done) * 2 + self.rank
            yield torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(seed))

    def state_dict(self) -> dict[str, int]:
        """The position in the epoch."""
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue at the position."""
        self.done = state["done"]
