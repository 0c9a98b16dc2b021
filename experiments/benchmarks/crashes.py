"""Kills constrained trainings with SIGKILL, resumes them in fresh processes and compares the bits.

    python -m experiments.benchmarks.crashes [--kills 20] [--seed 0] [--output FILE]

A training has 6 epochs of 8 batches, blocks of every kind, momentum and a scheduler, and saves
every 3 steps and at every epoch's end. It is killed once: in the middle of a batch, of the write of
a checkpoint, of the epoch's end (after the multipliers have moved, before they are saved), or by
the clock. Resumed from the last checkpoint, its parameters, multipliers and records must equal
those of an uninterrupted training, bit for bit. Kinds: a Lightning trainer, a plain loop, and
Lightning's DDP with two ranks, of which one is killed and the other must end by itself.

    python -m experiments.benchmarks.crashes train KIND FOLDER [--kill MOMENT:NUMBER]

is one such training; NUMBER says which batch, write or epoch, counted from 1.
"""

import argparse
import csv
import math
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.progress import track
from torch_powalm import ConstraintRegistry, PowerALMOptimizer, prox
from torch_powalm.files import last_checkpoint, load_checkpoint, save_checkpoint

RESULTS = Path(__file__).parent.parent / "results" / "crashes.csv"
EPOCHS, BATCHES, SAMPLES, EVERY = 6, 8, 16, 3
LAST = {"batch": EPOCHS * BATCHES, "write": EPOCHS * BATCHES // EVERY, "epoch": EPOCHS}
KINDS = ("lightning", "plain", "ddp")


class Killer:
    """Kills this process at the n-th moment of a sort."""

    def __init__(self, folder: Path, moment: str, number: int, rank: int) -> None:
        self.folder, self.moment, self.left, self.rank = folder, moment, number, rank

    def __call__(self, moment: str) -> None:
        """Count, and kill when it is time."""
        if self.is_time(moment):
            self.kill()

    def is_time(self, moment: str) -> bool:
        """Count; whether it is time."""
        if moment == "batch":
            with (self.folder / "batches").open("ab") as file:
                file.write(b".")  # for a kill by the clock
        if moment != self.moment or self.rank != int(os.environ.get("LOCAL_RANK", "0")):
            return False
        self.left -= 1
        return self.left == 0

    def kill(self) -> None:
        """End without a word."""
        (self.folder / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Net(nn.Module):
    """A classifier with blocks of every kind."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        self.constraints = ConstraintRegistry()
        self.constraints.equality("unit_rows", lambda: self.net[0].weight.square().sum(1) - 1)
        self.constraints.inequality("class_loss", size=3)
        self.constraints.equality("rate", size=1, from_statistics=lambda s: s[:1] / s[1:] - 0.4)

    def optimizer(self, omega: float = 1.1) -> PowerALMOptimizer:
        """Momentum, and a prox term."""
        base = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
        terms = {self.net[2].bias: prox.NonNegative()}
        return PowerALMOptimizer(base, self.constraints, nu=0.7, omega=omega, prox=terms)

    def measure(self, x: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Loss and batch blocks."""
        target = x[:, :3].argmax(1)
        logits = self.net(x)
        losses = cross_entropy(logits, target, reduction="none")
        count = torch.zeros(3).index_add(0, target, torch.ones(len(x)))
        value = torch.zeros(3).index_add(0, target, losses) / count.clamp(min=1) - 0.5
        rate = torch.cat([logits[:, :1].sigmoid().sum(0), torch.tensor([float(len(x))])])
        return losses.mean(), {"class_loss": (value, count), "rate": rate}


class Loader:
    """Batches that depend on epoch, position and rank; the position can be resumed.

    The epoch comes from outside, as torch's samplers have it and Lightning tells it.
    """

    def __init__(self, rank: int = 0) -> None:
        self.epoch, self.done, self.rank = 0, 0, rank
        self.sampler = self

    def set_epoch(self, epoch: int) -> None:
        """Choose what is iterated over next."""
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
        """How far the epoch has come."""
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there."""
        self.done = state["done"]


def outcome(net: nn.Module, optimizer: PowerALMOptimizer, records: list[Any]) -> dict[str, Any]:
    """What must be the same."""
    return {
        "params": net.state_dict(),
        "powalm": optimizer.powalm_state_dict(),
        "records": records,
    }


def train_plain(folder: Path, killer: Killer) -> None:
    """A plain loop with checkpoints of its own."""
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
    """A kill in the middle of a write: half of the bytes are in the file."""
    import fsspec.implementations.local as local

    sync, write = os.fsync, local.LocalFileOpener.write

    def fsync(file: int) -> None:
        if killer.is_time("write"):
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
    """The same under a Trainer; with two devices, one training on two ranks."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from torch_powalm.lightning import PowerALMCallback

    half_write(killer)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Net()

        def configure_optimizers(self) -> Any:
            optimizer = self.model.optimizer()
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.8)]

        def train_dataloader(self) -> Any:
            return Loader(self.global_rank)

        def training_step(self, x: Tensor, index: int) -> Tensor:
            loss, values = self.model.measure(x)
            augmented: Tensor = self.optimizers().augment(loss, **values)  # type: ignore[union-attr]
            augmented.register_hook(lambda grad: killer("batch"))
            return augmented

    class Records(lightning.Callback):
        def __init__(self) -> None:
            self.rows: list[Any] = []

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            killer("epoch")

        def on_train_batch_start(self, trainer: Any, module: Any, x: Any, index: int) -> None:
            if index == 0:  # on resuming, Lightning may leave out the hook of the epoch's start
                dual = trainer.optimizers[0].dual  # as the epoch before has left it
                self.rows.append([dual.k, dual.last_norm, dual.beta, float(dual.y.norm())])

        def state_dict(self) -> dict[str, Any]:
            return {"rows": self.rows}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.rows = state["rows"]

    module, records = Module(), Records()
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
    """Two ranks, started by Lightning."""
    train_lightning(folder, killer, devices=2, strategy="ddp")


TRAIN: dict[str, Callable[[Path, Killer], None]] = {
    "lightning": lambda folder, killer: train_lightning(folder, killer, devices=1),
    "plain": train_plain,
    "ddp": train_ddp,
}


def start(kind: str, folder: Path, kill: str = "never:0", rank: int = 0) -> Any:
    """A training in a fresh process, forked from a server that has only imported libraries."""
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lightning.pytorch", "torch_powalm.lightning"])
    job = context.Process(target=run, args=(kind, folder, kill, rank))
    job.start()
    return job


def run(kind: str, folder: Path, kill: str, rank: int) -> None:
    """One training; what it prints goes to a file."""
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if kind != "ddp":
        moment, number = kill.split(":")
        TRAIN[kind](folder, Killer(folder, moment, int(number), rank))
        return
    # Lightning starts the second rank by the same command; the pipe ends when both have ended.
    command = [sys.executable, "-m", "experiments.benchmarks.crashes", "train", kind, str(folder)]
    result = subprocess.run(
        [*command, "--kill", kill, "--rank", str(rank)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    os.write(log, result.stdout)
    sys.exit(int(result.returncode != 0))


def finish(kind: str, folder: Path) -> dict[str, Any]:
    """Train, or go on, to the end."""
    job = start(kind, folder)
    job.join()
    if job.exitcode != 0:
        printed = (folder / "log.txt").read_text()
        raise RuntimeError(f"{kind} in {folder} ended with {job.exitcode}:\n{printed}")
    result: dict[str, Any] = torch.load(folder / "end.pt", weights_only=True)
    return result


def crash(kind: str, folder: Path, kill: str, rank: int = 0) -> float:
    """Kill a training; the seconds until all its processes had ended by themselves.

    Args:
        kind: of the training.
        folder: where it saves.
        kill: "batch:3" and so on, or "clock:3.4": from outside, when 3 batches have begun and 0.4
            of the time of a batch has gone by, wherever the training may be then.
        rank: the rank to be killed.
    """
    moment, number = kill.split(":")
    by_clock = moment == "clock"
    job = start(kind, folder, "never:0" if by_clock else kill, rank)
    if by_clock:
        begun = _wait_for_batches(folder, 1, job)
        fraction, batches = math.modf(float(number))
        now = _wait_for_batches(folder, int(batches), job)
        time.sleep(fraction * (now - begun) / batches)
        (folder / "killed").touch()
        job.kill()
    job.join()
    if not (folder / "killed").exists() or job.exitcode == 0:
        printed = (folder / "log.txt").read_text()
        raise RuntimeError(f"{kind} in {folder} was not killed at {kill}:\n{printed}")
    return time.time() - (folder / "killed").stat().st_mtime


def _wait_for_batches(folder: Path, number: int, job: Any) -> float:
    """The time at which a training has begun so many batches, or has ended."""
    log = folder / "batches"
    while job.is_alive() and (not log.exists() or log.stat().st_size < number):
        time.sleep(0.0005)
    return time.perf_counter()


def same(a: Any, b: Any) -> bool:
    """Whether two outcomes have the same bits."""
    try:
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    except AssertionError:
        return False
    return True


def moments(kind: str, number: int, chance: random.Random) -> Iterator[tuple[str, int]]:
    """Random moments and ranks, of each sort about as many."""
    sorts = [*LAST, *([] if kind == "ddp" else ["clock"])]
    for i in range(number):
        sort = sorts[i % len(sorts)]
        # Rank 0 writes the checkpoints.
        rank = chance.randrange(2) if kind == "ddp" and sort != "write" else 0
        last = LAST["batch"] - BATCHES  # a training that ends too early would not be killed
        by_clock = sort == "clock"
        when = chance.uniform(2, last) if by_clock else chance.randrange(1, LAST[sort] + 1)
        yield f"{sort}:{when:.4g}", rank


def main() -> None:
    """Crash, resume, compare, write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="of each kind of training")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch, args.output.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["kind", "killed_at", "rank", "same_bits", "seconds_until_all_ended"])
        for kind in args.kinds:
            whole = finish(kind, Path(scratch) / kind / "whole")
            chosen = list(moments(kind, args.kills, random.Random(args.seed)))
            for i, (kill, rank) in enumerate(track(chosen, f"{kind}, killed")):
                folder = Path(scratch) / kind / str(i)
                seconds = crash(kind, folder, kill, rank)
                equal = same(finish(kind, folder), whole)
                rows.append([kind, kill, rank, "yes" if equal else "NO", f"{seconds:.1f}"])
                writer.writerow(rows[-1])
                file.flush()  # a table that is stopped keeps what it has
    for kind in args.kinds:
        mine = [row for row in rows if row[0] == kind]
        equal = sum(row[3] == "yes" for row in mine)
        slowest = max(float(row[4]) for row in mine)
        print(f"{kind}: {equal} of {len(mine)} the same bits; all ended within {slowest:.1f} s")


def train() -> None:
    """The command `train`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kill", default="never:0")
    parser.add_argument("--rank", type=int, default=0)
    args = parser.parse_args(sys.argv[2:])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    moment, number = args.kill.split(":")
    TRAIN[args.kind](args.folder, Killer(args.folder, moment, int(number), args.rank))


if __name__ == "__main__":
    train() if sys.argv[1:2] == ["train"] else main()
