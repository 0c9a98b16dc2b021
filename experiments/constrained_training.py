"""Constrained training of the two-layer network with Lightning, the same for all methods."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR

from experiments.data.images import Images
from experiments.methods import Method, Task
from experiments.network import TwoLayer, batches, cpu_trainer, quiet
from torch_powalm.lightning import feasible_loss

PART = 1000  # images that are evaluated at once, few enough for the cache


@dataclass(frozen=True)
class Schedule:
    """Length and learning rate of a training: Adam with a cosine from lr to 0.

    Args:
        epochs: at least 1.
        batch_size: images of a step, at least 1.
        n: training images, of which a tenth is for validation; None for all.
        hidden: width of the middle layer, at least 1.
        lr: first step size of Adam, > 0.
    """

    epochs: int
    batch_size: int
    n: int | None = None
    hidden: int = 128
    lr: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "hidden"):
            if not (value := getattr(self, name)) >= 1:
                raise ValueError(f"{name} must be at least 1, got {value!r}")
        if self.n is not None and self.n < 10:
            raise ValueError(f"n must be at least 10, got {self.n!r}")
        if not self.lr > 0:
            raise ValueError(f"lr must be positive, got {self.lr!r}")


class Data(NamedTuple):
    """Images for training, validation and testing, each with their classes."""

    train: tuple[Tensor, Tensor]
    val: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


class Constrained(TwoLayer):
    """The network, trained by a method.

    Args:
        task: what it has to learn and to obey.
        method: the method.
        schedule: length and learning rate.
        generator: source of the first weights.
    """

    def __init__(
        self, task: Task, method: Method, schedule: Schedule, generator: torch.Generator
    ) -> None:
        super().__init__(schedule.hidden, schedule.lr, generator)
        self.task, self.epochs = task, schedule.epochs
        adam = torch.optim.Adam(self.parameters(), lr=schedule.lr)
        self.started = method.start(task, self, adam)
        self.automatic_optimization = not self.started.steps_itself

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The method's loss."""
        return self.started.loss(*batch)

    def configure_optimizers(self) -> Any:
        """The method's optimizer with the cosine."""
        optimizer = self.started.optimizer
        return [optimizer], [CosineAnnealingLR(optimizer, self.epochs)]

    def on_train_epoch_end(self) -> None:
        """Advance the schedule, which Lightning does not do for methods that step themselves."""
        if self.started.steps_itself:
            self.lr_schedulers().step()  # type: ignore[union-attr, call-arg]

    @torch.no_grad()
    def measure(self, data: Data) -> dict[str, float]:
        """Loss, largest strict violation and accuracy on each part of the data."""
        row = {}
        for name, (images, labels) in data._asdict().items():
            outputs = torch.cat([self(part) for part in images.split(PART)])
            value = self.task.strict(self, outputs, labels)
            violated = value.clamp(min=0) if self.task.inequality else value.abs()
            row[f"{name}_loss"] = self.task.loss(outputs, labels).item()
            row[f"{name}_violation"] = violated.max().item()
            row[f"{name}_accuracy"] = (outputs.argmax(1) == labels).double().mean().item()
        return row


class History(Callback):
    """Measures the network after every epoch, in the same way for all methods."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.rows: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Add a row."""
        self.rows.append({"epoch": len(self.rows) + 1, **pl_module.measure(self.data)})


def fit(
    task: Task, method: Method, schedule: Schedule, images: Images, seed: int, progress: bool
) -> list[dict[str, float]]:
    """Train once, and return the measurements after every epoch.

    Args:
        task: the loss and the constraint.
        method: the method.
        schedule: length and learning rate.
        images: the data.
        seed: fixes the weights, the split and the order of the images for all methods.
        progress: draw a progress bar.
    """
    generator = torch.Generator().manual_seed(seed)
    data = split(images, schedule, generator)
    model = Constrained(task, method, schedule, generator)
    history = History(data)
    callbacks = [*model.started.callbacks, history]
    with quiet():
        trainer = cpu_trainer(schedule.epochs, callbacks, progress, enable_checkpointing=False)
        trainer.fit(model, batches(*data.train, schedule.batch_size, generator))
    return history.rows


def split(images: Images, schedule: Schedule, generator: torch.Generator) -> Data:
    """Split the chosen training images, in random order; a tenth is for validation."""
    total = len(images.train)
    if schedule.n is not None and schedule.n > total:
        raise ValueError(f"n must be at most {total}, got {schedule.n!r}")
    order = torch.randperm(total, generator=generator)[: schedule.n]
    val, train = order.tensor_split([len(order) // 10])
    return Data(
        (images.train[train], images.train_labels[train]),
        (images.train[val], images.train_labels[val]),
        (images.test, images.test_labels),
    )


def validation_score(row: dict[str, float], task: Task) -> float:
    """Score on validation data: the loss of feasible networks, a larger value for the others."""
    return feasible_loss(row["val_loss"], row["val_violation"], task.tolerance)
