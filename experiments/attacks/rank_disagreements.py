"""Four ranks, one of which disagrees: each must raise an error by name within 15 seconds.

python -m experiments.attacks.rank_disagreements [--sharded] [KIND …]
"""

import argparse
import multiprocessing
import os
import re
import tempfile
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from experiments.attacks.odd_rank import KINDS, UNSHARDED, Odd, build, train, values

RANKS, LIMIT = 4, 15.0
NAMED = re.compile(
    r"must be the same on all ranks|must be the same on every rank|all ranks must|step needs the"
    r"|augment (has no|must have)|update_multipliers has seen no batch|must have a value"
)


def run_rank(rank: int, kind: str, sharded: bool, folder: str) -> None:
    """Run one rank, and write how it ended."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    start = time.monotonic()
    try:
        train(rank, kind, sharded)
        found = "no error"
    except BaseException as error:
        found = f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - start
    Path(f"{folder}/{rank}").write_text(f"{seconds:.2f}\n{found}")
    os._exit(0)


def import_everything() -> None:
    """Do in this process what takes forked ones seconds: the imports of a first step."""
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.nn.parallel.distributed

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    net = nn.Linear(8, 4, dtype=torch.float64)
    optimizer = build(Odd(False, ""), net)
    out = net(torch.ones(5, 8, dtype=torch.float64))
    optimizer.augment(out.square().mean(), **values(Odd(False, ""), out)).backward()
    optimizer.step()


def attack(kind: str, sharded: bool) -> list[tuple[float, str]]:
    """Return the seconds and the error of every rank."""
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        args = kind, sharded, folder
        ranks = [fork.Process(target=run_rank, args=(r, *args)) for r in range(RANKS)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(40)
        found = []
        for rank, process in enumerate(ranks):
            path = Path(folder, str(rank))
            if process.is_alive():
                process.kill()
            text = path.read_text() if path.exists() else f"99\nno answer, exit {process.exitcode}"
            seconds, error = text.split("\n", 1)
            found.append((float(seconds), error))
    return found


def main() -> None:
    """Attack with all kinds, or those named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=KINDS)
    parser.add_argument("--sharded", action="store_true", help="FSDP2 instead of DDP")
    args = parser.parse_args()
    wrong = 0
    import_everything()
    kinds = [kind for kind in args.kinds if not (args.sharded and kind in UNSHARDED)]
    for kind in kinds:
        found = attack(kind, args.sharded)
        named = sum(bool(NAMED.search(error)) and s < LIMIT for s, error in found)
        wrong += named < RANKS
        slowest = max(seconds for seconds, _ in found)
        print(f"{kind:35} {named} of {RANKS} by name, {slowest:5.1f} s", flush=True)
        shown = dict.fromkeys(error[:230] for _, error in found)
        print("\n".join(f"    {error}" for error in shown), flush=True)
    print(f"{len(kinds) - wrong} of {len(kinds)} kinds: an error by name on all ranks")


if __name__ == "__main__":
    main()
