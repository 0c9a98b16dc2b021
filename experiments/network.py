"""The two-layer network whose outputs are the features, and its training with Lightning."""

import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, RichProgressBar
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from experiments.data.images import Images
from experiments.features import Training

HELD_OUT = 0.1  # share of the training images, for early stopping


class TwoLayer(pl.LightningModule):
    """Linear, ReLU, linear: from pixels to one output per class.

    Args:
        hidden: width of the middle layer, at least 1.
        lr: step size of Adam, > 0.
        generator: source of the initial weights.
    """

    def __init__(self, hidden: int, lr: float, generator: torch.Generator) -> None:
        super().__init__()
        self.lr = lr
        self.layers = nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))
        for layer in (self.layers[0], self.layers[2]):
            bound = 1 / math.sqrt(layer.in_features)
            for p in layer.parameters():
                nn.init.uniform_(p, -bound, bound, generator=generator)

    def forward(self, images: Tensor) -> Tensor:
        """The 10 outputs (logits) of images given as bytes."""
        outputs: Tensor = self.layers(images.flatten(1) / 255)
        return outputs

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Cross-entropy of a batch."""
        images, labels = batch
        loss = cross_entropy(self(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        """Cross-entropy and accuracy of held-out images."""
        images, labels = batch
        outputs = self(images)
        self.log("val_loss", cross_entropy(outputs, labels), prog_bar=True)
        self.log("val_accuracy", accuracy(outputs, labels), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Share of the images whose class has the largest output."""
    return (outputs.argmax(1) == labels).double().mean().item()


def fit(
    training: Training,
    images: Images,
    generator: torch.Generator,
    checkpoint: Path,
    progress: bool,
) -> TwoLayer:
    """Train, and return the network with the smallest held-out loss, saved as a checkpoint.

    Args:
        training: the settings.
        images: the data; a tenth of the training images is held out.
        generator: source of the weights and of the order of the images.
        checkpoint: file for the best weights.
        progress: draw a progress bar.
    """
    model = TwoLayer(training.hidden, training.lr, generator)
    order = torch.randperm(len(images.train), generator=generator)
    held_out, rest = order.tensor_split([round(HELD_OUT * len(order))])
    best = ModelCheckpoint(
        checkpoint.parent, checkpoint.stem, "val_loss", enable_version_counter=False
    )
    callbacks = [EarlyStopping("val_loss", patience=training.patience), best]
    with quiet():
        cpu_trainer(training.max_epochs, callbacks, progress).fit(
            model,
            batches(images.train[rest], images.train_labels[rest], training.batch_size, generator),
            batches(images.train[held_out], images.train_labels[held_out], 1000, None),
        )
    model.load_state_dict(torch.load(best.best_model_path, weights_only=True)["state_dict"])
    return model.eval()


def cpu_trainer(
    epochs: int, callbacks: Sequence[Callback], progress: bool, **settings: Any
) -> pl.Trainer:
    """A trainer on the CPU that logs nothing, with a progress bar if asked for."""
    return pl.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=[*callbacks, *([RichProgressBar()] if progress else [])],
        enable_progress_bar=progress,
        enable_model_summary=False,
        logger=False,
        **settings,
    )


def batches(
    images: Tensor, labels: Tensor, batch_size: int, generator: torch.Generator | None
) -> DataLoader[tuple[Tensor, Tensor]]:
    """Batches cut from the tensors, in random order if there is a generator."""
    data = TensorDataset(images, labels)
    order = RandomSampler(data, generator=generator) if generator else SequentialSampler(data)
    sampler = BatchSampler(order, batch_size, drop_last=False)
    return DataLoader(data, sampler=sampler, batch_size=None, generator=generator)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Lightning's advice: batches come from memory, and workers would only slow it down."""
    logs = [logging.getLogger(name) for name in ("lightning.pytorch", "pytorch_lightning")]
    levels = [log.level for log in logs]
    for log in logs:  # either of the two packages may log
        log.setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not have many workers.*")
        warnings.filterwarnings("ignore", ".*exists and is not empty.*")
        warnings.filterwarnings("ignore", ".*no `val_dataloader`.*")
        warnings.filterwarnings("ignore", ".*LeafSpec.*")
        yield
    for log, level in zip(logs, levels, strict=True):
        log.setLevel(level)
