"""Speed and memory of a long constrained training, from its beginning to its end.

    python -m experiments.benchmarks.soak [--steps 20000] [--output FILE]

A Lightning trainer with all kinds of blocks, multiplier updates every 50 steps and a CSV log. The
training is cut into ten windows. In each, steps are timed against plain training steps in between,
so that the load of the machine cancels, and tensors and resident memory are counted. Prints the
table and writes experiments/results/soak.csv.
"""

import argparse
import gc
import logging
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor

from experiments.atomic_files import write_csv
from experiments.benchmarks.classifier import SAMPLES, Net
from experiments.tables import markdown
from torch_powalm.lightning import PowerALMCallback

WINDOWS, PROBE = 10, 20  # PROBE: steps between two measurements
RESULTS = Path(__file__).parent.parent / "results" / "soak.csv"


class Module(lightning.LightningModule):
    """The training of the crash experiment, on fresh random batches."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Net()

    def configure_optimizers(self) -> Any:
        """The wrapped optimizer."""
        return self.model.optimizer(omega=1.0)

    def training_step(self, x: Tensor, index: int) -> Tensor:
        """Loss with constraints."""
        loss, values = self.model.measure(x)
        augmented: Tensor = self.optimizers().augment(loss, **values)  # type: ignore[union-attr]
        return augmented


class Windows(lightning.Callback):
    """Measures ratios to the plain step, tensors and memory, window by window."""

    def __init__(self, steps: int) -> None:
        self.every = steps // WINDOWS
        self.rows: list[tuple[float, int, float]] = []
        self.ratios: list[float] = []
        self.twin = Net()
        self.base = torch.optim.SGD(self.twin.net.parameters(), lr=0.01, momentum=0.9)
        self.x = torch.randn(SAMPLES, 6)
        self.start = time.perf_counter()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *batch: Any) -> None:
        """Measure, and close a window when it is full."""
        step = trainer.global_step
        if step % PROBE == 0:
            mine = (time.perf_counter() - self.start) / PROBE
            begun = time.perf_counter()
            for _ in range(5):
                self.base.zero_grad()
                self.twin.measure(self.x)[0].backward()
                self.base.step()
            self.ratios.append(mine / ((time.perf_counter() - begun) / 5))
            self.start = time.perf_counter()
        if step % self.every == 0:
            gc.collect()
            tensors = sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())
            self.rows.append((statistics.median(self.ratios), tensors, resident()))
            self.ratios = []
            self.start = time.perf_counter()


def resident() -> float:
    """Resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def main() -> None:
    """Train, write, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    gc.freeze()  # what exists before the training is neither searched nor counted
    windows = Windows(args.steps)
    data = torch.randn(args.steps, SAMPLES, 6, generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=1,
            callbacks=[PowerALMCallback(steps=50), windows],
            accelerator="cpu",
            devices=1,
            logger=CSVLogger(folder, flush_logs_every_n_steps=100),
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        try:
            trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=None))
        finally:
            gc.unfreeze()
    rows = [
        {
            "steps": str(i * windows.every),
            "ratio_to_plain_step": f"{ratio:.2f}",
            "tensors": str(tensors),
            "resident_mb": f"{memory:.1f}",
        }
        for i, (ratio, tensors, memory) in enumerate(windows.rows, 1)
    ]
    write_csv(args.output, rows)
    print(markdown(rows))


if __name__ == "__main__":
    main()
