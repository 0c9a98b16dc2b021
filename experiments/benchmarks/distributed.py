"""Cost of reducing batch constraints over ranks, as a fraction of a DDP training step.

    python -m experiments.benchmarks.distributed [--rounds 60] [--steps 10]

Two processes, one thread each, gloo over the loopback. In every round each method makes `steps`
steps, in an order that rotates from round to round. "alone" gives every rank a process group of its
own: the same work without the all_reduce (the training is then wrong). The fraction is the median
over rounds of 1 − alone / together. Writes experiments/results/distributed.csv.
"""

import argparse
import multiprocessing
import platform
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot
from torch.nn.parallel import DistributedDataParallel

from experiments.atomic_files import write_csv
from experiments.benchmarks.interleaved import Step, interleave, ratios
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

EPOCH = 50
RESULTS = Path(__file__).parent.parent / "results" / "distributed.csv"
COLUMNS = ("case", "fraction_of_step", "first_quartile", "third_quartile", "ratio_to_plain")


class Classes(nn.Module):
    """10 constraints: the loss of every class, with counts, of an MLP on 128 images a rank."""

    size = 10

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
        generator = torch.Generator().manual_seed(rank)
        self.x = torch.randn(128, 784, generator=generator)
        self.target = torch.randint(10, (128,), generator=generator)

    def forward(self) -> tuple[Tensor, Any]:
        """Loss and constraint of this rank's batch."""
        losses = cross_entropy(self.net(self.x), self.target, reduction="none")
        hot = one_hot(self.target, 10).float()
        count = hot.sum(0)
        return losses.mean(), (losses @ hot / count.clamp(min=1) - 0.3, count)


class Units(nn.Module):
    """100,000 constraints: the mean activation of every hidden unit, on 16 inputs a rank."""

    size = 100_000

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, self.size), nn.Tanh())
        self.x = torch.randn(16, 20, generator=torch.Generator().manual_seed(rank))

    def forward(self) -> tuple[Tensor, Any]:
        """Loss and constraint of this rank's batch."""
        hidden = self.net(self.x)
        return hidden.square().mean(), hidden.mean(0) - 0.1


CASES = {"m = 10, counts, MLP": Classes, "m = 100,000, mean activations": Units}
METHODS = ("plain", "alone", "together")


def build(kind: type[nn.Module], method: str, rank: int, own: Any) -> Step:
    """A training step of a method."""
    torch.manual_seed(0)
    module = kind(rank)
    model = DistributedDataParallel(module)
    base = torch.optim.Adam(module.parameters(), lr=1e-4)
    if method == "plain":

        def plain() -> None:
            base.zero_grad()
            model()[0].backward()
            base.step()

        return plain

    constraints = ConstraintRegistry()
    constraints.inequality("block", size=module.size)
    group = own if method == "alone" else None
    optimizer = PowerALMOptimizer(base, constraints, nu=0.7, process_group=group)

    def step() -> None:
        optimizer.zero_grad()
        loss, value = model()
        optimizer.augment(loss, block=value).backward()
        optimizer.step()
        if optimizer.should_update(steps=EPOCH):
            optimizer.update_multipliers()

    return step


def measure(case: str, rounds: int, steps: int, rank: int, own: Any) -> dict[str, list[float]]:
    """Seconds per step of every method, round by round."""
    methods = {method: build(CASES[case], method, rank, own) for method in METHODS}
    warm_up = min(EPOCH + 5, rounds * steps)
    return interleave(methods, rounds, steps, label=case, warm_up=warm_up, around=_together)


@contextmanager
def _together(name: str) -> Iterator[None]:
    """Let both ranks begin at the same time."""
    dist.barrier()
    yield


def run_rank(rank: int, folder: Path, rounds: int, steps: int, output: Path) -> None:
    """One of the two processes; the first writes and prints."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    own = [dist.new_group([r]) for r in range(2)][rank]
    rows = []
    for case in CASES:
        times = measure(case, rounds, steps, rank, own)
        fraction = [1 - ratio for ratio in ratios(times, "alone", "together")]
        low, middle, high = statistics.quantiles(fraction)
        ratio = statistics.median(ratios(times, "together", "plain"))
        cells = [case, *(f"{value:.3f}" for value in (middle, low, high, ratio))]
        rows.append(dict(zip(COLUMNS, cells, strict=True)))
    if rank == 0:
        write_csv(output, rows, COLUMNS)
        for line in (COLUMNS, *(row.values() for row in rows)):
            print("| " + " | ".join(line) + " |")
        print(
            f"{rounds} rounds of {steps} steps, two ranks of one thread, {platform.machine()}, "
            f"torch {version('torch')}; written to {output}"
        )
    dist.destroy_process_group()


def main() -> None:
    """Start both ranks and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory() as folder:
        shared = (Path(folder), args.rounds, args.steps, args.output)
        ranks = [context.Process(target=run_rank, args=(rank, *shared)) for rank in range(2)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    if any(rank.exitcode != 0 for rank in ranks):
        raise SystemExit("a rank has failed")


if __name__ == "__main__":
    main()
