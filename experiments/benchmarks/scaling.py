"""Growth of the cost: clustering with n points, training with m constraints.

    python -m experiments.benchmarks.scaling [--gradients 60] [--rounds 20] [--output FOLDER]

Clustering: the first `gradients` gradient calls of power_alm with its defaults, in microseconds per
call: in total, for the product with D, and for the rest. Training: a step with m constraints
x_i² = 1 over a step of the hand-written augmented Lagrangian, alternating, median over rounds.
Memory: peak bytes of the tensors of a solve, without D and x_1, and of a training, with model and
optimizer. Exponents are least-squares slopes of the logarithms. Writes scaling.csv.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from experiments.atomic_files import write_csv
from experiments.benchmarks.interleaved import Step, interleave, ratios
from experiments.benchmarks.machine import record_machine
from experiments.benchmarks.outcome_table import RESULTS, Row
from experiments.benchmarks.training_steps import EPOCH, floor, ours
from experiments.benchmarks.training_tasks import Signs, Task
from experiments.counting_bar import track
from experiments.problems import deterministic
from experiments.problems.deterministic import Spread
from torch_powalm import Problem, power_alm

POINTS = (250, 500, 1000, 2000, 4000)
CONSTRAINTS = (10, 100, 1000, 10_000, 100_000, 1_000_000)
STEPS = {10: 50, 100: 50, 1000: 50, 10_000: 50, 100_000: 10, 1_000_000: 5}  # in a round
COLUMNS = ("part", "size", "quantity", "value")


class _Clock:
    """The objective of a clustering, with the time of its products."""

    def __init__(self, spread: Spread) -> None:
        self.spread, self.seconds = spread, 0.0

    def value_and_grad(self, X: Tensor) -> tuple[float, Tensor]:
        """Value and gradient, timed."""
        start = time.process_time()
        found = self.spread.value_and_grad(X)
        self.seconds += time.process_time() - start
        return found


def clusters(n: int, gradients: int, rounds: int = 3) -> list[Row]:
    """Cost of a gradient call with n points in ten blobs."""
    generator = torch.Generator().manual_seed(0)
    centers = 4 * torch.randn(10, 10, generator=generator)
    points = centers[torch.arange(n) % 10] + torch.randn(n, 10, generator=generator)
    problem, x_1 = deterministic.clustering(points.softmax(1))
    total, product = [], []
    for _ in range(rounds + 1):
        clock = _Clock(problem.oracle.f_by_hand)
        constraint = problem.oracle.constraints["equality"]
        timed = Problem(clock, equality=constraint, g=problem.g)
        start = time.process_time()
        calls = power_alm(timed, x_1, max_gradients=gradients).gradient_calls
        total.append(1e6 * (time.process_time() - start) / calls)
        product.append(1e6 * clock.seconds / calls)
    beside = [a - b for a, b in zip(total[1:], product[1:], strict=True)]
    held = peak(lambda: power_alm(problem, x_1, max_gradients=gradients))
    values = {
        "µs per gradient call": statistics.median(total[1:]),
        "µs of the product with D": statistics.median(product[1:]),
        "µs beside the product": statistics.median(beside),
        "peak memory of a solve, vectors": held / (x_1.element_size() * x_1.numel()),
        "MB of a solve": held / 1e6,
    }
    return [
        {"part": "clustering", "size": n, "quantity": name, "value": f"{value:.4g}"}
        for name, value in values.items()
    ]


def constraints(m: int, rounds: int) -> list[Row]:
    """A training step with m constraints over one of the floor, for two powers."""
    steps = STEPS.get(m, 10)
    builders = {"floor": floor, "ours ν = 1": ours(1.0), "ours ν = 0.7": ours(0.7)}
    methods = {name: build(Signs(size=m), False) for name, build in builders.items()}
    times = interleave(
        methods,
        rounds,
        steps,
        label=f"{m:,} constraints",
        warm_up=min(EPOCH + 5, 10 * steps),
        clock=time.process_time,
    )
    rows = []
    for name in methods:
        values = {
            f"{name}, µs per step": 1e6 * statistics.median(times[name]),
            f"{name} / floor": statistics.median(ratios(times, name, "floor")),
            f"{name}, MB of a training": peak(partial(_train, builders[name], m)) / 1e6,
        }
        for quantity, value in values.items():
            row = {"part": "training", "size": m, "quantity": quantity, "value": f"{value:.4g}"}
            rows.append(row)
    return rows


def _train(build: Callable[[Task, bool], Step], m: int) -> None:
    """Build model and optimizer, and step until after the first multiplier update."""
    step = build(Signs(size=m), False)
    for _ in range(EPOCH + 1):
        step()


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The exponent p of value ~ size^p by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def peak(run: Callable[[], object]) -> int:
    """Peak bytes of the tensors that a call allocates."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences the profiler
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    changes = [event for event in events if event.get("name") == "[memory]"]
    changes.sort(key=lambda event: float(event["ts"]))
    return max(accumulate(event["args"]["Bytes"] for event in changes))


def main() -> None:
    """Measure, write, print the slopes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gradients", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args: Any = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    clusters(POINTS[0], args.gradients)  # the first call also loads code
    for n in track(POINTS, "clustering by size"):
        rows += clusters(n, args.gradients)
    for m in CONSTRAINTS:
        rows += constraints(m, args.rounds)
    write_csv(args.output / "scaling.csv", rows, COLUMNS)
    record_machine(args.output, "scaling")
    for row in rows:
        print(*row.values())


if __name__ == "__main__":
    main()
