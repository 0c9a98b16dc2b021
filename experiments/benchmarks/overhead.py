"""What a constrained training step costs, against a hand-written augmented Lagrangian.

    python -m experiments.benchmarks.overhead [--rounds 60] [--steps 10]

One process, one thread. In every round each method makes `steps` training steps, in an order that
rotates from round to round; a ratio is the median over rounds of (method / floor in that round).
Multipliers are updated every 50 steps by ours and the floor, at every step by the others, whose
methods are made so. mdmm has an object for each constraint and is left out beyond 1,000 of them.
Writes experiments/results/overhead.csv and prints the table.
"""

import argparse
import csv
import platform
import resource
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn

from experiments.progress import track
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

EPOCH = 50
MANY = 1000  # constraints, for mdmm
RESULTS = Path(__file__).parent.parent / "results" / "overhead.csv"
Step = Callable[[], None]


class Task:
    """A training task: a loss of the batch, constraint functions and the kind they are of."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(128, 784, generator=generator)
        self.target = torch.randint(10, (128,), generator=generator)
        self.one_hot = nn.functional.one_hot(self.target, 10).float()
        self.model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
        with torch.no_grad():
            for p in self.model.parameters():
                p.copy_(torch.randn(p.shape, generator=generator) / p.shape[-1] ** 0.5)
        self.params = list(self.model.parameters())

    def losses(self) -> Tensor:
        """Loss of every sample."""
        return nn.functional.cross_entropy(self.model(self.x), self.target, reduction="none")

    def loss(self) -> Tensor:
        """Training loss."""
        return self.losses().mean()

    def class_losses(self, losses: Tensor) -> Tensor:
        """Mean loss of each class, minus its bound."""
        return losses @ self.one_hot / self.one_hot.sum(0).clamp(min=1) - 0.3

    def functions(self) -> list[Callable[[], Tensor]]:
        """Parameter-only equality constraints, one block each."""
        return [lambda: self.model[0].weight.square().sum(1) - 1]


class Blocks(Task):
    """The row norms of the first layer in 64 blocks of 4."""

    def functions(self) -> list[Callable[[], Tensor]]:
        """64 functions of 4 rows each."""
        return [
            lambda i=i: self.model[0].weight[4 * i : 4 * i + 4].square().sum(1) - 1  # type: ignore[misc]
            for i in range(64)
        ]


class Signs(Task):
    """A vector of 100,000 entries with x_i² = 1 and a linear loss."""

    def __init__(self, seed: int = 0, size: int = 100_000) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.c = torch.randn(size, generator=generator)
        self.x = nn.Parameter(torch.randn(size, generator=generator))
        self.params = [self.x]

    def loss(self) -> Tensor:
        """⟨c, x⟩."""
        return self.c @ self.x

    def functions(self) -> list[Callable[[], Tensor]]:
        """x_i² − 1."""
        return [lambda: self.x.square() - 1]


def adam(task: Task) -> torch.optim.Optimizer:
    """The optimizer of every method."""
    return torch.optim.Adam(task.params, lr=1e-4)


def plain(task: Task, batch: bool) -> Step:
    """Unconstrained training."""
    optimizer = adam(task)

    def step() -> None:
        optimizer.zero_grad()
        task.loss().backward()
        optimizer.step()

    return step


def floor(task: Task, batch: bool) -> Step:
    """The augmented Lagrangian written out by hand, the cheapest way we know."""
    optimizer, beta, count = adam(task), 1.0, 0
    functions = task.functions()
    y = torch.zeros(10 if batch else sum(len(fn()) for fn in functions))

    def step() -> None:
        nonlocal y, beta, count
        optimizer.zero_grad()
        if batch:
            losses = task.losses()
            A = task.class_losses(losses)
            loss = losses.mean() + torch.relu(y + beta * A).square().sum() / (2 * beta)
        else:
            A = functions[0]() if len(functions) == 1 else torch.cat([fn() for fn in functions])
            loss = task.loss() + y @ A + beta / 2 * (A @ A)
        loss.backward()
        optimizer.step()
        count += 1
        if count % EPOCH == 0:
            y = y + beta * A.detach()
            y = y.clamp(min=0) if batch else y
            beta *= 1.1

    return step


def ours(nu: float) -> Callable[[Task, bool], Step]:
    """PowerALMOptimizer."""

    def build(task: Task, batch: bool) -> Step:
        constraints = ConstraintRegistry()
        if batch:
            constraints.inequality("class_loss", size=10)
        else:
            for i, fn in enumerate(task.functions()):
                constraints.equality(f"block_{i}", fn)
        optimizer = PowerALMOptimizer(adam(task), constraints, nu=nu, beta_1=1.0, omega=1.1)

        def step() -> None:
            optimizer.zero_grad()
            if batch:
                losses = task.losses()
                loss = optimizer.augment(losses.mean(), class_loss=task.class_losses(losses))
            else:
                loss = task.loss()
            loss.backward()
            optimizer.step()
            if optimizer.should_update(steps=EPOCH):
                optimizer.update_multipliers()

        return step

    return build


def cooper(task: Task, batch: bool) -> Step:
    """cooper-optim's AugmentedLagrangian with simultaneous updates."""
    import cooper as co

    kind = co.ConstraintType.INEQUALITY if batch else co.ConstraintType.EQUALITY
    functions = task.functions()

    class Problem(co.ConstrainedMinimizationProblem):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = []
            for i, size in enumerate([10] if batch else [len(fn()) for fn in functions]):
                block = co.Constraint(
                    constraint_type=kind,
                    formulation_type=co.formulations.AugmentedLagrangian,
                    multiplier=co.multipliers.DenseMultiplier(num_constraints=size),
                    penalty_coefficient=co.penalty_coefficients.DensePenaltyCoefficient(
                        init=torch.tensor(1.0)
                    ),
                )
                self.blocks.append(block)
                setattr(self, f"block_{i}", block)

        def compute_cmp_state(self) -> co.CMPState:
            if batch:
                losses = task.losses()
                loss, values = losses.mean(), [task.class_losses(losses)]
            else:
                loss, values = task.loss(), [fn() for fn in functions]
            states = [co.ConstraintState(violation=value) for value in values]
            return co.CMPState(
                loss=loss,
                observed_constraints=dict(zip(self.blocks, states, strict=True)),
            )

    problem = Problem()
    dual = torch.optim.SGD(problem.dual_parameters(), lr=1e-3, maximize=True)
    optimizer = co.optim.SimultaneousOptimizer(
        cmp=problem, primal_optimizers=adam(task), dual_optimizers=dual
    )
    return lambda: optimizer.roll() and None


def humancompatible(task: Task, batch: bool) -> Step:
    """humancompatible-train's ALM."""
    from humancompatible.train.dual_optim import ALM

    functions, optimizer = task.functions(), adam(task)
    m = 10 if batch else sum(len(fn()) for fn in functions)
    dual = ALM(m=m, lr=1e-3, penalty=1.0, is_ineq=batch)

    def step() -> None:
        if batch:
            losses = task.losses()
            loss, values = losses.mean(), task.class_losses(losses)
        else:
            loss = task.loss()
            values = (
                functions[0]() if len(functions) == 1 else torch.cat([fn() for fn in functions])
            )
        optimizer.zero_grad()
        dual.forward_update(loss, values).backward()
        optimizer.step()

    return step


def modified_differential(task: Task, batch: bool) -> Step | None:
    """mdmm, one object for each constraint, all of them views of vectors that are made once."""
    import mdmm

    functions = task.functions()
    now = [torch.zeros(10)] if batch else [fn() for fn in functions]
    if sum(map(len, now)) > MANY:
        return None
    kind = mdmm.MaxConstraintHard if batch else mdmm.EqConstraint
    module = mdmm.MDMM(
        kind(lambda i=i, j=j: now[i][j], 0.0)  # type: ignore[misc]
        for i, block in enumerate(now)
        for j in range(len(block))
    )
    optimizer = module.make_optimizer(task.params, optimizer=torch.optim.Adam, lr=1e-4)

    def step() -> None:
        if batch:
            losses = task.losses()
            loss, now[:] = losses.mean(), [task.class_losses(losses)]
        else:
            loss, now[:] = task.loss(), [fn() for fn in functions]
        optimizer.zero_grad()
        module(loss).value.backward()
        optimizer.step()

    return step


CASES: dict[str, tuple[type[Task], bool]] = {
    "a: MLP, 256 row norms": (Task, False),
    "b: MLP, 10 class losses (inequalities)": (Task, True),
    "c: 100,000 unknowns, x_i^2 = 1": (Signs, False),
    "d: MLP, 256 row norms in 64 blocks": (Blocks, False),
}
METHODS: dict[str, Callable[[Task, bool], Step | None]] = {
    "plain": plain,
    "floor": floor,
    "ours nu=1": ours(1.0),
    "ours nu=0.7": ours(0.7),
    "cooper": cooper,
    "humancompatible-train": humancompatible,
    "mdmm": modified_differential,
}


def measure(case: str, rounds: int, steps: int) -> dict[str, list[float]]:
    """Seconds per step of every method, round by round."""
    task, batch = CASES[case]
    methods = {}
    for name, build in METHODS.items():
        try:
            step = build(task(), batch)
        except ImportError as error:
            print(f"{name} is left out: {error}")
            continue
        if step is not None:
            methods[name] = step
    for step in methods.values():
        for _ in range(EPOCH + 5):
            step()
    times: dict[str, list[float]] = {name: [] for name in methods}
    names = list(methods)
    for k in track(range(rounds), case):
        for name in names[k % len(names) :] + names[: k % len(names)]:
            start = time.perf_counter()
            for _ in range(steps):
                methods[name]()
            times[name].append((time.perf_counter() - start) / steps)
    return times


def memory(steps: int) -> tuple[float, float]:
    """Floats that the wrapper holds per constraint, and growth of the peak over `steps`, in MB."""
    task = Signs()
    step = ours(0.7)(task, False)
    for _ in range(200):
        step()
    optimizer = next(
        cell.cell_contents
        for cell in step.__closure__ or ()
        if isinstance(cell.cell_contents, PowerALMOptimizer)
    )
    held = sum(v.numel() for v in vars(optimizer.dual).values() if isinstance(v, Tensor))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in track(range(steps), "memory"):
        step()
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return held / 100_000, growth


def main() -> None:
    """Measure all cases, write the CSV and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--memory-steps", type=int, default=10_000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)

    rows = []
    for case in CASES:
        times = measure(case, args.rounds, args.steps)
        for name, values in times.items():
            ratios = [a / b for a, b in zip(values, times["floor"], strict=True)]
            quartiles = statistics.quantiles(ratios, n=4)
            rows.append(
                [case, name, f"{quartiles[1]:.3f}", f"{quartiles[0]:.3f}", f"{quartiles[2]:.3f}"]
            )
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with args.output.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["case", "method", "ratio_to_floor", "first_quartile", "third_quartile"])
        writer.writerows(rows)

    print("| case | " + " | ".join(METHODS) + " |\n|" + "---|" * (len(METHODS) + 1))
    for case in CASES:
        found = {row[1]: row[2] for row in rows if row[0] == case}
        print(f"| {case} | " + " | ".join(found.get(name, "–") for name in METHODS) + " |")
    held, growth = memory(args.memory_steps)
    print(f"memory: {held:.1f} floats per constraint held, peak grew by {growth:.1f} MB")
    print(
        f"{args.rounds} rounds of {args.steps} steps, one thread, {platform.machine()}, "
        f"Python {platform.python_version()}, torch {version('torch')}; written to {args.output}"
    )


if __name__ == "__main__":
    main()
