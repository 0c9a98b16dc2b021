"""Kills constrained trainings with SIGKILL, resumes them in fresh processes and compares the bits.

    python -m experiments.benchmarks.crashes [--kills 20] [--seed 0] [--output FILE]

A training has 6 epochs of 8 batches, all kinds of blocks, momentum and a scheduler, and saves a
checkpoint every 3 steps and at the end of each epoch. It is killed once: in the middle of a batch,
while a checkpoint is written, at the end of an epoch (after the multiplier update, before it is
saved), or by the clock. Resumed from the last checkpoint, it must end with the parameters,
multipliers and records of an uninterrupted training, bit for bit. Kinds: a Lightning trainer, a
plain loop, and Lightning's DDP with two ranks, one of which is killed; the other must end by
itself; and a sweep of six solves, killed while it writes or between two runs. No temporary file may
be left.
"""

import argparse
import csv
import math
import multiprocessing
import os
import random
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from experiments import run_folder
from experiments.benchmarks.classifier import BATCHES
from experiments.benchmarks.crash_training import EPOCHS, EVERY, TRAIN, train
from experiments.counting_bar import track

PRELOADED = ["lightning.pytorch", "torch_powalm.lightning", "experiments.solve"]
RESULTS = Path(__file__).parent.parent / "results" / "crashes.csv"
LAST = {"batch": EPOCHS * BATCHES, "write": EPOCHS * BATCHES // EVERY, "epoch": EPOCHS}
OF_SWEEPS = {"batch": 5, "write": 12}


def start(kind: str, folder: Path, kill: str = "never:0", rank: int = 0) -> Any:
    """Start a training in a fresh process, forked from a server that has imported the libraries."""
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    job = context.Process(target=run, args=(kind, folder, kill, rank))
    job.start()
    return job


def run(kind: str, folder: Path, kill: str, rank: int) -> None:
    """Run one training; its output goes to a file."""
    # Lightning writes into a temporary file there, and renames it.
    (folder / "tmp").mkdir(exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if kind != "ddp":
        train(kind, folder, kill, rank)
        return
    # As a cluster does: both ranks are started from outside and find each other by a port.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_train_rank, args=(i, folder, kill, rank)) for i in range(2)]
    for job in ranks:
        job.start()
    for job in ranks:
        job.join()
    sys.exit(int(any(job.exitcode != 0 for job in ranks)))


def _train_rank(local_rank: int, folder: Path, kill: str, rank: int) -> None:
    os.environ["LOCAL_RANK"] = str(local_rank)
    train("ddp", folder, kill, rank)


def finish(kind: str, folder: Path) -> dict[str, Any]:
    """Train, or resume, to the end."""
    job = start(kind, folder)
    job.join()
    if job.exitcode != 0:
        printed = (folder / "log.txt").read_text()
        raise RuntimeError(f"{kind} in {folder} ended with {job.exitcode}:\n{printed}")
    if kind == "sweep":
        return sweep_outcome(folder / "runs")
    result: dict[str, Any] = torch.load(folder / "end.pt", weights_only=True)
    return result


def sweep_outcome(folder: Path) -> dict[str, Any]:
    """Return the numbers of all runs of a sweep, without times."""
    found: dict[str, Any] = {}
    for run in run_folder.read(folder):
        history = {name: column for name, column in run.history.items() if name != "seconds"}
        found[run.key] = [run.result, history]
    return found


def litter(folder: Path) -> list[str]:
    """Return the names of temporary files that no process will remove."""
    endings = (".part", ".powalm-part", ".tmp")
    hidden = [p for p in folder.rglob("*") if p.name.startswith(".") or p.name.endswith(endings)]
    return sorted(str(p.relative_to(folder)) for p in hidden)


def crash(kind: str, folder: Path, kill: str, rank: int = 0) -> float:
    """Kill a training; return the seconds until all its processes had ended.

    Args:
        kind: of the training.
        folder: where it saves.
        kill: "batch:3" and so on, or "clock:3.4": from outside, when 3 batches have begun and 0.4
            of the time of a batch has passed.
        rank: the rank to kill.
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
    """Wait until a training has begun so many batches or has ended; return the time."""
    log = folder / "batches"
    while job.is_alive() and (not log.exists() or log.stat().st_size < number):
        time.sleep(0.0005)
    return time.perf_counter()


def same(a: Any, b: Any) -> bool:
    """Whether two outcomes are equal bit for bit."""
    try:
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    except AssertionError:
        return False
    return True


def moments(kind: str, number: int, chance: random.Random) -> Iterator[tuple[str, int]]:
    """Random moments and ranks, about as many of each kind of moment."""
    last_ones = OF_SWEEPS if kind == "sweep" else LAST
    sorts = [*last_ones, *([] if kind in ("ddp", "sweep") else ["clock"])]
    for i in range(number):
        sort = sorts[i % len(sorts)]
        # Rank 0 writes the checkpoints.
        rank = chance.randrange(2) if kind == "ddp" and sort != "write" else 0
        last = LAST["batch"] - BATCHES  # later, the training might end before it is killed
        by_clock = sort == "clock"
        when = chance.uniform(2, last) if by_clock else chance.randrange(1, last_ones[sort] + 1)
        yield f"{sort}:{when:.4g}", rank


def main() -> None:
    """Crash, resume, compare, write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="of each kind of training")
    parser.add_argument("--kinds", nargs="+", choices=TRAIN, default=list(TRAIN))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch, args.output.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        columns = ["kind", "killed_at", "rank", "same_bits", "litter", "seconds_until_all_ended"]
        writer.writerow(columns)
        for kind in args.kinds:
            whole = finish(kind, Path(scratch) / kind / "whole")
            chosen = list(moments(kind, args.kills, random.Random(args.seed)))
            for i, (kill, rank) in enumerate(track(chosen, f"{kind}, killed")):
                folder = Path(scratch) / kind / str(i)
                seconds = crash(kind, folder, kill, rank)
                equal, left = same(finish(kind, folder), whole), litter(folder)
                told = "yes" if equal else "NO"
                rows.append([kind, kill, rank, told, " ".join(left), f"{seconds:.1f}"])
                shutil.rmtree(folder)
                writer.writerow(rows[-1])
                file.flush()  # rows survive if the command is stopped
    for kind in args.kinds:
        mine = [row for row in rows if row[0] == kind]
        equal = sum(row[3] == "yes" for row in mine)
        clean, slowest = sum(row[4] == "" for row in mine), max(float(row[5]) for row in mine)
        print(
            f"{kind}: {equal} of {len(mine)} bit for bit equal, {clean} without litter; "
            f"all ended within {slowest:.1f} s"
        )
    if any(row[3] != "yes" or row[4] for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
