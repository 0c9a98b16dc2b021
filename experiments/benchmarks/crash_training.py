"""Constrained trainings that kill themselves at a given moment and resume from their checkpoints.

    python -m experiments.benchmarks.crash_training KIND FOLDER [--kill MOMENT:NUMBER] [--rank RANK]

Kinds: a Lightning trainer, a plain loop, Lightning's DDP with two ranks, and a sweep of six solves,
whose "batch" is a finished run. Moments: "batch" is in
the middle of a backward pass, "write" with half a checkpoint written, "epoch" between a multiplier
update and the checkpoint that saves it. NUMBER counts these moments from 1.
"""

import argparse
import os
import signal
import stat
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.benchmarks.classifier import BATCHES, Loader, Net
from torch_powalm import (
    PowerALMOptimizer,
    last_checkpoint,
    load_checkpoint,
    save_checkpoint,
)

EPOCHS, EVERY = 6, 3  # EVERY: steps between checkpoints


class Killer:
    """Kills this process at the n-th moment of one kind."""

    def __init__(self, folder: Path, moment: str, number: int, rank: int) -> None:
        self.folder, self.moment, self.left, self.rank = folder, moment, number, rank

    def __call__(self, moment: str) -> None:
        """Count the moment, and kill if it is the n-th."""
        if self.is_time(moment):
            self.kill()

    def is_time(self, moment: str) -> bool:
        """Count the moment; return whether it is the n-th."""
        if moment == "batch":
            with (self.folder / "batches").open("ab") as file:
                file.write(b".")  # read by kills by the clock
        if moment != self.moment or self.rank != int(os.environ.get("LOCAL_RANK", "0")):
            return False
        self.left -= 1
        return self.left == 0

    def kill(self) -> None:
        """Kill the process without any cleanup."""
        (self.folder / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def outcome(net: nn.Module, optimizer: PowerALMOptimizer, records: list[Any]) -> dict[str, Any]:
    """What must be equal after a resumed and an uninterrupted training."""
    return {
        "params": net.state_dict(),
        "powalm": optimizer.powalm_state_dict(),
        "records": records,
    }


def train_plain(folder: Path, killer: Killer) -> None:
    """Train in a plain loop with its own checkpoints."""
    half_write(killer)
    model, loader = Net(), Loader()
    optimizer = model.optimizer()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.8)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader}
    records: list[Any] = []
    epoch = 0

    def save() -> None:
        state = {name: part.state_dict() for name, part in parts.items()}  # type: ignore[attr-defined]
        save_checkpoint({**state, "records": records, "epoch": epoch}, folder / "last.ckpt")

    if (folder / "last.ckpt").exists():
        state = load_checkpoint(folder / "last.ckpt")
        for name, part in parts.items():
            part.load_state_dict(state[name])  # type: ignore[attr-defined]
        records, epoch = state["records"], state["epoch"]
    resumed_at_its_end = loader.done == BATCHES
    for epoch in range(epoch, EPOCHS):  # noqa: B020
        loader.set_epoch(epoch)
        for x in () if resumed_at_its_end else loader:
            optimizer.zero_grad()
            loss, values = model.measure(x)
            loss = optimizer.augment(loss, **values)
            loss.register_hook(lambda grad: killer("batch"))
            loss.backward()
            optimizer.step()
            if (epoch * BATCHES + loader.done) % EVERY == 0:
                save()
        resumed_at_its_end = False
        record = optimizer.update_multipliers()
        killer("epoch")
        records.append([record.k, record.primal_residual, record.beta, record.y_norm])
        scheduler.step()
    torch.save(outcome(model, optimizer, records), folder / "end.pt")


def half_write(killer: Killer) -> None:
    """Let the killer strike in the middle of a write, with half of the bytes in the file."""
    import fsspec.implementations.local as local

    sync, write = os.fsync, local.LocalFileOpener.write

    def fsync(file: int) -> None:
        whole = stat.S_ISREG(os.fstat(file).st_mode)  # not a folder
        if whole and killer.is_time("write"):
            os.ftruncate(file, os.fstat(file).st_size // 2)
            killer.kill()
        sync(file)

    def fsspec_write(self: Any, content: bytes, *args: Any) -> Any:
        if killer.is_time("write"):
            write(self, content[: len(content) // 2])
            self.f.flush()
            killer.kill()
        return write(self, content, *args)

    os.fsync, local.LocalFileOpener.write = fsync, fsspec_write


def train_lightning(folder: Path, killer: Killer, **settings: Any) -> None:
    """Train with a Trainer; with two devices, on two ranks."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from experiments.benchmarks.crash_lightning import Module, Records
    from torch_powalm.lightning import PowerALMCallback

    half_write(killer)
    module, records = Module(killer), Records(killer)
    checkpoints = [
        ModelCheckpoint(folder, "{step}", every_n_train_steps=EVERY, save_top_k=-1),
        ModelCheckpoint(folder, "end-{epoch}", save_on_train_epoch_end=True, save_top_k=-1),
    ]
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        callbacks=[PowerALMCallback(), records, *checkpoints],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
    trainer.fit(module, ckpt_path=last_checkpoint(folder))
    if trainer.is_global_zero:
        torch.save(outcome(module, trainer.optimizers[0], records.rows), folder / "end.pt")


def train_ddp(folder: Path, killer: Killer) -> None:
    """Train on two ranks that Lightning starts."""
    train_lightning(folder, killer, devices=2, strategy="ddp")


def run_sweep(folder: Path, killer: Killer) -> None:
    """Run a small sweep of experiments; finished runs are skipped."""
    from experiments import hydra_cli, solve

    replace = os.replace

    def half_replace(part: Any, target: Any) -> None:
        if killer.is_time("write"):
            os.truncate(part, os.path.getsize(part) // 2)
            killer.kill()
        replace(part, target)
        if str(target).endswith("run.json"):
            killer("batch")

    os.replace = half_replace  # type: ignore[assignment]
    sizes = ["n=12", "problem.m=3", "++alm.max_outer=2", "++alm.max_inner=30", "progress=false"]
    swept = ["nu=0.7,1.0", "seed=0,1,2"]
    sys.argv = ["solve", "-m", "experiment=qp_double", f"output={folder}/runs", *sizes, *swept]
    hydra_cli.run(solve.main)


TRAIN: dict[str, Callable[[Path, Killer], None]] = {
    "sweep": run_sweep,
    "lightning": lambda folder, killer: train_lightning(folder, killer, devices=1),
    "plain": train_plain,
    "ddp": train_ddp,
}


def train(kind: str, folder: Path, kill: str, rank: int) -> None:
    """Train in this process, in one thread, and kill it at "MOMENT:NUMBER"."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    moment, number = kill.split(":")
    TRAIN[kind](folder, Killer(folder, moment, int(number), rank))


def main() -> None:
    """Run one training."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=TRAIN)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kill", default="never:0")
    parser.add_argument("--rank", type=int, default=0)
    args = parser.parse_args()
    train(args.kind, args.folder, args.kill, args.rank)


if __name__ == "__main__":
    main()
