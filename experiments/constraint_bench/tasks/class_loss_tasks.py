"""Bounds on the losses of classes: noisy labels, Neyman–Pearson, rare classes in a short run."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.constraint_bench.networks import mlp, pooled_images, row_batches
from experiments.constraint_bench.task import Constraint, Evaluation, Task, Training

Split = dict[str, tuple[Tensor, Tensor]]


def noisy_fashion(generator: torch.Generator) -> Training:
    """Fashion-MNIST, few of three classes, 20 % of the labels replaced; no class loss above 1.6."""
    images = pooled_images("fashion_mnist")
    data = {
        name: _noisy(*_thinned(*part, (2, 4, 6), 5), generator) for name, part in images.items()
    }
    model = mlp([196, 32, 10], nn.ReLU, generator)
    batches = row_batches(len(data["train"][0]), 100, 800, generator)
    return _bounded(model, data, batches, torch.full((10,), 1.6), 0.02)


def neyman_pearson(generator: torch.Generator) -> Training:
    """Digits 3, 5 and 8 against the others, linear: the loss of 3, 5, 8 is at most 0.15."""
    data = {name: (x, _is_any(y, (3, 5, 8))) for name, (x, y) in pooled_images("mnist").items()}
    model = mlp([196, 2], nn.ReLU, generator)
    batches = row_batches(5000, 100, 800, generator)
    return _bounded(model, data, batches, torch.tensor([torch.inf, 0.15]), 0.01)


def rare_digits(generator: torch.Generator) -> Training:
    """MNIST, one tenth of the digits 5 to 9, 300 steps; no class loss above 0.8."""
    data = {
        name: _thinned(*part, (5, 6, 7, 8, 9), 10) for name, part in pooled_images("mnist").items()
    }
    model = mlp([196, 24, 10], nn.ReLU, generator)
    batches = row_batches(len(data["train"][0]), 64, 300, generator)
    return _bounded(model, data, batches, torch.full((10,), 0.8), 0.03)


def _bounded(
    model: nn.Module, data: Split, batches: list[Tensor], bounds: Tensor, tolerance: float
) -> Training:
    """Minimize the mean loss, or the loss of unbounded classes, under bounds by class."""
    classes, bounded = len(bounds), bounds.isfinite()
    free = ~bounded if bool((~bounded).any()) else bounded

    def losses(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        each = cross_entropy(model(x), target, reduction="none")
        count = torch.bincount(target, minlength=classes).float()
        total = torch.zeros(classes).index_add(0, target, each)
        loss = total[free].sum() / count[free].sum()
        return loss, (total / count.clamp(min=1) - bounds)[bounded], count[bounded]

    def evaluate(rows: Tensor) -> Evaluation:
        x, target = data["train"]
        loss, value, count = losses(x[rows], target[rows])
        return Evaluation(loss, {"class_loss": (value, count)}, {})

    @torch.no_grad()
    def merit(split: str) -> float:
        return losses(*data[split])[0].item()

    @torch.no_grad()
    def values(split: str) -> dict[str, Tensor]:
        return {"class_loss": losses(*data[split])[1]}

    block = Constraint("class_loss", True, int(bounded.sum()), tolerance)
    return Training(model, [block], batches, evaluate, merit, values)


def _noisy(x: Tensor, target: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    replaced = torch.rand(len(target), generator=generator) < 0.2
    other = torch.randint(10, target.shape, generator=generator)
    return x, torch.where(replaced, other, target)


def _thinned(
    x: Tensor, target: Tensor, rare: tuple[int, ...], divisor: int
) -> tuple[Tensor, Tensor]:
    """Keep one in `divisor` images of the rare classes."""
    kept = ~_is_any(target, rare).bool() | (torch.arange(len(target)) % divisor == 0)
    return x[kept], target[kept]


def _is_any(target: Tensor, digits: tuple[int, ...]) -> Tensor:
    return torch.isin(target, torch.tensor(digits)).long()


_task = partial(Task, kind="losses", steps=800, steps_per_epoch=50, lr=3e-3)
TASKS = [
    _task("fashion_class_losses", build=noisy_fashion, sgd_lr=0.03),
    _task("mnist_neyman_pearson", build=neyman_pearson, sgd_lr=0.01),
    Task("short_rare_digits", "short", rare_digits, 300, 43, lr=1e-2, sgd_lr=0.03),
]
