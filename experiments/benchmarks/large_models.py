"""Steps of larger models: time over a hand-written augmented Lagrangian, and bytes beyond it.

    python -m experiments.benchmarks.large_models [--rounds 9] [--cases gpt resnet18 mlp]

gpt: 2 million parameters, 5,120 row norms and a bound on a mean of the batch. resnet18: 64 norms of
filters and the bound. mlp: 50 million parameters, 4,096 row norms and the bound. Everything is
measured in rounds of rotating order in one process with one thread, by its CPU time, which other
processes disturb less than the clock; bytes are peaks of processes.
"""

import argparse
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.benchmarks.interleaved import Step, interleave, ratios
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

EPOCH = 50  # steps between updates of the multipliers
WIDTH, HEADS, LAYERS, TOKENS, VOCABULARY = 128, 4, 10, 32, 256
BOUND = 0.1


class Case(NamedTuple):
    """A model with constraints.

    Args:
        model: the network.
        losses: losses of the entries of a batch, and a quantity of the batch to bound.
        rows: norms of rows that must be 1.
    """

    model: nn.Module
    losses: Callable[[], tuple[Tensor, Tensor]]
    rows: Callable[[], Tensor]


class Layer(nn.Module):
    """A layer of a small GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to earlier tokens, then mix the entries of each."""
        b, t, _ = x.shape
        q, k, v = (
            part.reshape(b, t, HEADS, -1).transpose(1, 2)
            for part in self.qkv(self.before(x)).chunk(3, 2)
        )
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(b, t, WIDTH))
        mixed: Tensor = x + self.narrow(nn.functional.gelu(self.wide(self.between(x))))
        return mixed


def gpt() -> Case:
    """A GPT of 2 million parameters, and 5,120 row norms."""
    layers = [Layer() for _ in range(LAYERS)]
    embed, head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
    model = nn.Sequential(embed, *layers, nn.LayerNorm(WIDTH), head)
    tokens = torch.randint(0, VOCABULARY, (4, TOKENS + 1))

    def losses() -> tuple[Tensor, Tensor]:
        logits = model(tokens[:, :-1]).flatten(0, 1)
        found = cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none")
        return found, found.reshape(4, -1)[:, -8:].mean().reshape(1) - BOUND

    return Case(
        model, losses, lambda: torch.cat([_squares(layer.wide.weight) for layer in layers]) - 1
    )


def resnet18() -> Case:
    """ResNet-18 of torchvision on images of 32 × 32."""
    from torchvision.models import resnet18 as build

    model = build(num_classes=10)
    x, target = torch.randn(8, 3, 32, 32), torch.arange(8) % 10
    return Case(model, _classifier(model, x, target), lambda: _squares(model.conv1.weight) - 1)


def mlp() -> Case:
    """A network of fully connected layers with 54 million parameters."""
    sizes = (784, 4096, 4096, 4096, 4096)
    layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(4096, 10))
    x, target = torch.randn(32, 784), torch.arange(32) % 10
    first = layers[0]
    return Case(model, _classifier(model, x, target), lambda: _squares(first.weight) - 1)


def _squares(weight: Tensor) -> Tensor:
    return weight.flatten(1).square().sum(1)


def _classifier(model: nn.Module, x: Tensor, target: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
    def losses() -> tuple[Tensor, Tensor]:
        found = cross_entropy(model(x), target, reduction="none")
        return found, found[:4].mean().reshape(1) - BOUND

    return losses


CASES: dict[str, Callable[[], Case]] = {"gpt": gpt, "resnet18": resnet18, "mlp": mlp}


def by_hand(case: Case) -> Step:
    """Return a step of the augmented Lagrangian written by hand."""
    optimizer = torch.optim.Adam(case.model.parameters(), lr=1e-4)
    state = {"y": torch.zeros(len(case.rows())), "z": torch.zeros(1)}
    beta, count = 1.0, 0

    def step() -> None:
        nonlocal beta, count
        optimizer.zero_grad()
        losses, value = case.losses()
        A = case.rows()
        bounded = torch.relu(state["z"] + beta * value).square().sum() / (2 * beta)
        (losses.mean() + state["y"] @ A + beta / 2 * (A @ A) + bounded).backward()
        optimizer.step()
        count += 1
        if count % EPOCH == 0:
            state["y"] = state["y"] + beta * A.detach()
            state["z"] = (state["z"] + beta * value.detach()).clamp(min=0)
            beta *= 1.1

    return step


def ours(nu: float) -> Callable[[Case], Step]:
    """Return a function that builds a step of PowerALMOptimizer."""

    def build(case: Case) -> Step:
        constraints = ConstraintRegistry()
        constraints.equality("rows", case.rows)
        constraints.inequality("bounded", size=1)
        base = torch.optim.Adam(case.model.parameters(), lr=1e-4)
        settings = {"beta_1": 1.0, "omega": 1.1, "nu": nu, "updates": EPOCH}
        optimizer = PowerALMOptimizer(base, constraints, **settings)

        def step() -> None:
            optimizer.zero_grad()
            losses, value = case.losses()
            optimizer.augment(losses.mean(), bounded=value).backward()
            optimizer.step()

        return step

    return build


METHODS: dict[str, Callable[[Case], Step]] = {
    "by hand": by_hand,
    "ours, ν = 1": ours(1.0),
    "ours, ν = 0.8": ours(0.8),
}


def peak(case: str, method: str, steps: int) -> int:
    """Return the peak memory of a process that makes some steps, in bytes."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_peak, (case, method, steps))


def _peak(case: str, method: str, steps: int) -> int:
    torch.set_num_threads(1)
    step = METHODS[method](CASES[case]())
    for _ in range(steps):
        step()
    lines = Path("/proc/self/status").read_text().splitlines()
    high = next(line for line in lines if line.startswith("VmHWM"))
    return 1024 * int(high.split()[1])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| case | method | time over the floor | quartiles | bytes beyond it |\n|" + "---|" * 5)
    for name in args.cases:
        torch.manual_seed(0)
        steps = {method: build(CASES[name]()) for method, build in METHODS.items()}
        settings = {"label": name, "warm_up": 3, "clock": time.process_time}
        times = interleave(steps, args.rounds, args.steps, **settings)
        bytes_by_hand = peak(name, "by hand", 5)
        for method in list(METHODS)[1:]:
            low, middle, high = statistics.quantiles(ratios(times, method, "by hand"), n=4)
            more = peak(name, method, 5) - bytes_by_hand
            cells = f"{middle:.3f} | {low:.3f} to {high:.3f} | {more / 1e6:.1f} MB"
            print(f"| {name} | {method} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
