"""Steps with a constraint for each of a million samples, and compiled steps.

    python -m experiments.benchmarks.sample_steps [--rounds 60]

samples: networks for Fashion-MNIST's shapes, with one hidden layer of 256 and with the two of 512
of PyTorch's own tutorial, batches of 128, n = 1,000,000: time over the step without constraints.
compiled: a step with an equality of the parameters and an inequality of the batch under
torch.compile, over a compiled one written by hand, with all guards of torch.compile and with those
of tensors alone. One thread, rotating order, and CPU time, which other processes disturb less than
the clock.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.benchmarks.interleaved import Step, interleave, ratios
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

SAMPLES, BATCH, WIDTH, UPDATES = 1_000_000, 128, 256, 200
Guards = Callable[..., Any] | None  # which guards torch.compile keeps; None for all
NETWORKS = {"256": (WIDTH,), "512, 512": (512, 512)}


def network(widths: Sequence[int] = (WIDTH,)) -> nn.Sequential:
    """Return a network for images of 28 × 28."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for width, inner in itertools.pairwise((784, *widths)):
        layers += [nn.Linear(width, inner), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


def batches() -> Callable[[], tuple[Tensor, Tensor, Tensor]]:
    """Return a function that gives a batch and the indices of its samples."""
    x, target = torch.randn(4096, 784), torch.randint(0, 10, (4096,))
    generator = torch.Generator().manual_seed(1)

    def draw() -> tuple[Tensor, Tensor, Tensor]:
        index = torch.randint(0, SAMPLES, (BATCH,), generator=generator)
        return x[index % 4096], target[index % 4096], index

    return draw


def without_constraints(widths: Sequence[int]) -> Step:
    """A step of plain training."""
    model, draw = network(widths), batches()
    base = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> None:
        base.zero_grad()
        x, target, _ = draw()
        cross_entropy(model(x), target).backward()
        base.step()

    return step


def with_samples(widths: Sequence[int], nu: float) -> Step:
    """A step with a bound on the loss of every sample."""
    model, draw, constraints = network(widths), batches(), ConstraintRegistry()
    constraints.inequality("sample_loss", size=SAMPLES, indexed=True)
    base = torch.optim.Adam(model.parameters(), lr=1e-4)
    settings = {"nu": nu, "total_steps": UPDATES * 200, "updates": UPDATES}
    optimizer = PowerALMOptimizer(base, constraints, **settings)

    def step() -> None:
        optimizer.zero_grad()
        x, target, index = draw()
        losses = cross_entropy(model(x), target, reduction="none")
        optimizer.augment(losses.mean(), sample_loss=(losses - 0.5, index)).backward()
        optimizer.step()

    return step


def _fill(params: list[nn.Parameter], loss: Tensor) -> None:
    """Put the gradients into .grad in place, as a graph that also steps needs it."""
    for p, grad in zip(params, torch.autograd.grad(loss, params), strict=True):
        if p.grad is not None:
            p.grad.copy_(grad)


def compiled_by_hand(guards: Guards = None) -> Step:
    """A compiled step of the augmented Lagrangian and of SGD written by hand, ν = 1."""
    model, draw = network(), batches()
    params, first = list(model.parameters()), model[0]
    averages, rate = [torch.zeros_like(p) for p in params], torch.tensor(1e-3)
    y, z, beta = torch.zeros(WIDTH), torch.zeros(1), torch.ones(())

    def whole(x: Tensor, target: Tensor) -> None:
        loss = cross_entropy(model(x), target)
        A, value = first.weight.square().sum(1) - 1, loss.reshape(1) - 0.5
        bounded = torch.relu(z + beta * value).square().sum() / (2 * beta)
        _fill(params, loss + y @ A + beta / 2 * (A @ A) + bounded)
        with torch.no_grad():
            for p, average in zip(params, averages, strict=True):
                average.mul_(0.9).add_(p.grad)
                p.sub_(rate * average)

    return _compiled(whole, params, draw, lambda: True, guards)


def compiled_ours(nu: float, guards: Guards = None) -> Step:
    """A compiled step of PowerALMOptimizer."""
    model, draw, constraints = network(), batches(), ConstraintRegistry()
    params, first = list(model.parameters()), model[0]
    constraints.equality("rows", lambda: first.weight.square().sum(1) - 1)
    constraints.inequality("mean", size=1)
    base = torch.optim.SGD(params, lr=torch.tensor(1e-3), momentum=0.9)
    settings = {"nu": nu, "beta_1": 1.0, "check_finite": "at_update", "updates": UPDATES}
    optimizer = PowerALMOptimizer(base, constraints, on_nonfinite="skip", **settings)

    def whole(x: Tensor, target: Tensor) -> None:
        loss = cross_entropy(model(x), target)
        _fill(params, optimizer.augment(loss, mean=loss.reshape(1) - 0.5))
        optimizer.step()

    def clear() -> bool:
        optimizer.zero_grad(set_to_none=False)
        return optimizer.is_steady

    return _compiled(whole, params, draw, clear, guards)


def _compiled(
    whole: Callable[[Tensor, Tensor], None],
    params: list[nn.Parameter],
    draw: Callable[[], tuple[Tensor, Tensor, Tensor]],
    ready: Callable[[], bool],
    guards: Guards,
) -> Step:
    options = None if guards is None else {"guard_filter_fn": guards}
    fast = torch.compile(whole, fullgraph=True, options=options)
    for p in params:
        p.grad = torch.zeros_like(p)

    def step() -> None:
        x, target, _ = draw()
        (fast if ready() else whole)(x, target)

    return step


def show(title: str, steps: Mapping[str, Step], rounds: int) -> None:
    """Print the time of each step over that of the first."""
    clock, floor = time.process_time, next(iter(steps))
    times = interleave(steps, rounds, 10, label=title, warm_up=30, clock=clock)
    for name in steps:
        low, middle, high = statistics.quantiles(ratios(times, name, floor), n=4)
        cost = 1e3 * statistics.median(times[name])
        print(f"| {name} | {middle:.3f} | {low:.3f} to {high:.3f} | {cost:.2f} ms |", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--part", choices=("samples", "compiled"), help="only this part")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch._dynamo.config.trace_autograd_ops = True
    print("| step | over the floor | quartiles | time |\n|---|---|---|---|")
    if args.part != "compiled":
        for name, widths in NETWORKS.items():
            samples = {
                f"{name}: without constraints": without_constraints(widths),
                f"{name}: 10⁶ samples, ν = 1": with_samples(widths, 1.0),
                f"{name}: 10⁶ samples, ν = 0.8": with_samples(widths, 0.8),
            }
            show(f"samples, {name}", samples, args.rounds)
    if args.part != "samples":
        few = getattr(torch.compiler, "keep_tensor_guards_unsafe", None)
        for name, guards in {"all guards": None, "tensor guards": few}.items():
            compiled = {
                f"{name}: by hand, compiled": compiled_by_hand(guards),
                f"{name}: ours, compiled, ν = 1": compiled_ours(1.0, guards),
                f"{name}: ours, compiled, ν = 0.8": compiled_ours(0.8, guards),
            }
            show(f"compiled, {name}", compiled, args.rounds)


if __name__ == "__main__":
    main()
