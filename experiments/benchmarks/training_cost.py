"""Cost of a step in the constrained trainings, as a ratio to an unconstrained step.

    python -m experiments.benchmarks.training_cost [--rounds 60] [--steps 10] [--output FILE]

One process, one thread, the sample of the images in the repository. In every round each method
makes `steps` steps, in rotating order; a ratio is the median over rounds of (method / unconstrained
in that round). Multipliers are updated as often as in the experiments. Writes
experiments/results/training_cost.csv.
"""

import argparse
import statistics
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch import Tensor

from experiments import hydra_cli
from experiments.atomic_files import write_csv
from experiments.benchmarks.interleaved import Step, interleave, ratios
from experiments.constrained_training import Constrained, Schedule, split
from experiments.data.images import Images, Source
from experiments.methods import Method, PowerALM, Task
from experiments.network import batches

RESULTS = Path(__file__).parent.parent / "results" / "training_cost.csv"
EXPERIMENTS = ("neyman_pearson", "orthonormal")
METHODS = ("unconstrained", "penalty", "cooper", *(f"powalm {nu}" for nu in (0.5, 0.7, 0.8, 1.0)))
COLUMNS = ("experiment", "method", "ratio", "first_quartile", "third_quartile")
WARM_UP = 10  # steps


def main() -> None:
    """Measure both experiments, write the CSV and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    images = Source("fashion_mnist").load()
    rows = []
    for experiment in EXPERIMENTS:
        steps = {}
        for name in METHODS:
            if name == "cooper" and find_spec("cooper") is None:
                print("cooper is skipped; install it with pip install 'torch-powalm[benchmarks]'")
                continue
            label, task, method, schedule = _objects(experiment, name)
            steps[label] = build(task, method, schedule, images)
        times = interleave(steps, args.rounds, args.steps, label=experiment, warm_up=WARM_UP)
        for label in times:
            first, middle, third = statistics.quantiles(ratios(times, label, "unconstrained"))
            cells = [experiment, label, f"{middle:.2f}", f"{first:.2f}", f"{third:.2f}"]
            print(*cells)
            rows.append(dict(zip(COLUMNS, cells, strict=True)))
    write_csv(args.output, rows, COLUMNS)
    print(f"written to {args.output}")


def build(task: Task, method: Method, schedule: Schedule, images: Images) -> Step:
    """A training step of the method with the first of its candidates, as a function."""
    generator = torch.Generator().manual_seed(0)
    data = split(images, schedule, generator)
    candidate = next(iter(method.candidates().values()))
    model = Constrained(task, candidate, schedule, generator)
    loader = batches(*data.train, schedule.batch_size, generator)
    stream: Iterator[list[Tensor]] = cycle(loader)
    optimizer = model.started.optimizer

    def step() -> None:
        if model.started.steps_itself:
            model.started.loss(*next(stream))
            return
        optimizer.zero_grad()
        model.started.loss(*next(stream)).backward()
        optimizer.step()
        if isinstance(candidate, PowerALM) and optimizer.should_update(
            **candidate.updates, steps_per_epoch=len(loader)
        ):
            optimizer.update_multipliers()

    return step


def _objects(experiment: str, method: str) -> tuple[str, Task, Method, Schedule]:
    name, *powers = method.split()
    overrides = [f"experiment={experiment}", f"method={name}", "++schedule.n=null"]
    overrides += [f"method.nu={nu}" for nu in powers]
    with initialize_config_dir(hydra_cli.CONFIGS, version_base="1.3"):
        cfg = compose("train", overrides)
    return (cfg.label, *(instantiate(cfg[part]) for part in ("task", "method", "schedule")))  # type: ignore[return-value]


if __name__ == "__main__":
    main()
