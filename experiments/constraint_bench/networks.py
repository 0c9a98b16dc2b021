"""Small networks and batches whose random numbers all come from one generator."""

import itertools
import math
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from experiments.data.images import Source


def mlp(sizes: list[int], activation: type[nn.Module], generator: torch.Generator) -> nn.Sequential:
    """Fully connected layers with an activation between them."""
    layers: list[nn.Module] = []
    for n, m in itertools.pairwise(sizes):
        layers += [nn.Linear(n, m), activation()]
    model = nn.Sequential(*layers[:-1])
    initialize(model, generator)
    return model


@torch.no_grad()
def initialize(model: nn.Module, generator: torch.Generator) -> None:
    """Draw weights of variance 1/fan-in and set biases to 0."""
    for p in model.parameters():
        if p.dim() == 2:
            p.copy_(torch.randn(p.shape, generator=generator) / math.sqrt(p.shape[1]))
        else:
            p.zero_()


def linear_layers(model: nn.Module) -> list[nn.Linear]:
    """The linear layers of a network, from input to output."""
    return [layer for layer in model.modules() if isinstance(layer, nn.Linear)]


def row_batches(rows: int, batch_size: int, steps: int, generator: torch.Generator) -> list[Tensor]:
    """Row numbers of each batch: a new permutation each epoch, incomplete batches dropped."""
    batches: list[Tensor] = []
    while len(batches) < steps:
        order = torch.randperm(rows, generator=generator)
        batches += [part for part in order.split(batch_size) if len(part) == batch_size]
    return batches[:steps]


@cache
def pooled_images(dataset: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Images of 14 × 14 pixels as vectors, and their classes, for "train" and "test"."""
    images = Source(dataset).load()
    return {
        "train": (_pooled(images.train), images.train_labels),
        "test": (_pooled(images.test), images.test_labels),
    }


def _pooled(images: Tensor) -> Tensor:
    small = avg_pool2d(images.float().unsqueeze(1) / 255, 2).flatten(1)
    return (small - 0.2) / 0.3
