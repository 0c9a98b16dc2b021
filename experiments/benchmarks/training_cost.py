"""What a step costs in the constrained trainings, as a ratio to an unconstrained one.

    python -m experiments.benchmarks.training_cost [--rounds 60] [--steps 10] [--output FILE]

One process, one thread, the carried images. In every round each method makes `steps` steps, in an
order that rotates; a ratio is the median over rounds of (method / unconstrained in that round).
Multipliers move as often as in the experiments. Writes experiments/results/training/cost.csv.
"""

import argparse
import csv
import statistics
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch import Tensor

from experiments import entry
from experiments.data.images import Images, Source
from experiments.methods import Method, PowerALM, Task
from experiments.network import batches
from experiments.progress import track
from experiments.training import Constrained, Schedule, split

RESULTS = Path(__file__).parent.parent / "results" / "training" / "cost.csv"
EXPERIMENTS = ("neyman_pearson", "orthonormal")
METHODS = ("unconstrained", "penalty", "cooper", "nu_05", "nu_07", "nu_08", "nu_1")
WARM_UP = 10  # steps
Step = Callable[[], None]


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
                print("cooper is left out; pip install 'torch-powalm[benchmarks]' brings it")
                continue
            label, task, method, schedule = _objects(experiment, name)
            steps[label] = build(task, method, schedule, images)
        for label, ratios in measure(steps, args.rounds, args.steps, experiment).items():
            first, middle, third = statistics.quantiles(ratios, n=4)
            rows.append([experiment, label, f"{middle:.2f}", f"{first:.2f}", f"{third:.2f}"])
            print(*rows[-1])
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with args.output.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["experiment", "method", "ratio", "first_quartile", "third_quartile"])
        writer.writerows(rows)
    print(f"written to {args.output}")


def measure(
    methods: dict[str, Step], rounds: int, steps: int, label: str
) -> dict[str, list[float]]:
    """Ratios to "unconstrained", round by round."""
    for step in methods.values():
        for _ in range(WARM_UP):
            step()
    times: dict[str, list[float]] = {name: [] for name in methods}
    names = list(methods)
    for k in track(range(rounds), label):
        for name in names[k % len(names) :] + names[: k % len(names)]:
            start = time.perf_counter()
            for _ in range(steps):
                methods[name]()
            times[name].append(time.perf_counter() - start)
    unit = times["unconstrained"]
    return {name: [a / b for a, b in zip(times[name], unit, strict=True)] for name in names}


def build(task: Task, method: Method, schedule: Schedule, images: Images) -> Step:
    """A training step of the method as a function; of a grid, of its first candidate."""
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
    with initialize_config_dir(entry.CONFIGS, version_base="1.3"):
        overrides = [f"experiment={experiment}", f"method={method}", "++schedule.n=null"]
        cfg = compose("train", overrides)
    return (cfg.label, *(instantiate(cfg[part]) for part in ("task", "method", "schedule")))  # type: ignore[return-value]


if __name__ == "__main__":
    main()
