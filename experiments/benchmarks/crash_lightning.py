"""The LightningModule of the trainings that kill themselves, and the records of its updates."""

from collections.abc import Callable
from typing import Any

import lightning
import torch
from torch import Tensor

from experiments.benchmarks.classifier import Loader, Net


class Module(lightning.LightningModule):
    """The classifier of the benchmarks.

    Args:
        killer: called in the middle of every backward pass.
    """

    def __init__(self, killer: Callable[[str], None]) -> None:
        super().__init__()
        self.model = Net()
        self.killer = killer

    def configure_optimizers(self) -> Any:
        """Return the optimizer and a scheduler."""
        optimizer = self.model.optimizer()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.8)]

    def train_dataloader(self) -> Any:
        """Return the batches of this rank."""
        return Loader(self.global_rank)

    def training_step(self, x: Tensor, index: int) -> Tensor:
        """Return the augmented loss."""
        loss, values = self.model.measure(x)
        augmented: Tensor = self.optimizers().augment(loss, **values)  # type: ignore[union-attr]
        augmented.register_hook(lambda grad: self.killer("batch"))
        return augmented


class Records(lightning.Callback):
    """What every update left behind.

    Args:
        killer: called at the end of every epoch.
    """

    def __init__(self, killer: Callable[[str], None]) -> None:
        self.killer = killer
        self.rows: list[Any] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Kill, if it is time."""
        self.killer("epoch")

    def on_train_batch_start(self, trainer: Any, module: Any, x: Any, index: int) -> None:
        """Record the update of the epoch before."""
        if index == 0:  # a resumed Lightning may skip the hook at the start of the epoch
            dual = trainer.optimizers[0].dual
            self.rows.append([dual.k, dual.last_norm, dual.beta, float(dual.y.norm())])

    def state_dict(self) -> dict[str, Any]:
        """Return the records."""
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up saved records."""
        self.rows = state["rows"]
