"""Gradient calls of power_alm on the paper's problems, and its time against the bare oracle.

    python -m experiments.benchmarks.solving --data FOLDER [--n 1000]

FOLDER holds MNIST and Fashion-MNIST as torchvision lays them out. Features are the 10 outputs of a
two-layer network on n test images. Writes experiments/results/solving.csv and prints it as a table.
"""

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

from experiments.problems.deterministic import clustering, gevp, qp
from experiments.progress import track
from torch_powalm import Problem, Solution, power_alm, solvers

RESULTS = Path(__file__).parent.parent / "results" / "solving.csv"
PAPER = {
    "sigma": "paper",
    "sigma_1": 10.0,
    "lam": 1e-3,
    "beta_1": 5.0,
    "omega": 1.1,
    "max_inner": 1500,
    "solver": solvers.UPFAG(),
}
COLUMNS = ["problem", "setting", "nu", "status", "outer", "inner", "gradients", "primal", "dual"]
COLUMNS += ["objective", "limit"]
LIMITS = {0.7: 21_000, 0.8: 33_000, 0.9: 70_500, 1.0: 102_000}  # UPFAG iterations of the paper


def features(root: Path, name: str, n: int) -> Tensor:
    """Outputs of a two-layer network, trained for three epochs, on n random test images."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    kind = getattr(torchvision.datasets, name)
    train, test = (kind(root, train=part, download=False) for part in (True, False))
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in track(range(3), f"features of {name}"):
        for rows in torch.randperm(len(train), generator=generator).split(100):
            loss = nn.functional.cross_entropy(model(train.data[rows] / 255), train.targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    rows = torch.randperm(len(test), generator=generator)[:n]
    with torch.no_grad():
        outputs: Tensor = model(test.data[rows] / 255)
    accuracy = (outputs.argmax(1) == test.targets[rows]).float().mean().item()
    print(f"{name}: accuracy {accuracy:.3f} on the {n} images")
    return outputs


def row(problem: str, setting: str, nu: float, solution: Solution, limit: object = "") -> list[Any]:
    """One line of the table."""
    inner = sum(record.inner_iterations for record in solution.records)
    status, residuals = solution.status.value, solution.residuals
    numbers = [f"{v:.2e}" for v in (residuals.primal, residuals.dual)]
    counts = [len(solution.records), inner, solution.gradient_calls]
    return [problem, setting, nu, status, *counts, *numbers, f"{solution.objective:.6g}", limit]


def overhead(make: Callable[[], tuple[Problem, Tensor]], eps: float, rounds: int) -> list[float]:
    """Microseconds per gradient call: whole solve, bare oracle; medians, interleaved."""
    problem, x = make()
    f, (constraint,) = problem.oracle.f_by_hand, [block[1] for block in problem.oracle.blocks]
    w = torch.ones_like(constraint.values(x))
    whole, bare = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        calls = power_alm(problem, x, eps_phi=eps, eps_A=eps).gradient_calls
        whole.append((time.perf_counter() - start) / calls)
        start = time.perf_counter()
        for _ in range(100):
            f.value_and_grad(x)
            constraint.values(x)
            constraint.vjp(x, w)
        bare.append((time.perf_counter() - start) / 100)
    return [1e6 * statistics.median(times) for times in (whole, bare)]


def main() -> None:
    """Solve, write, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []

    def keep(*cells: Any) -> None:
        rows.append(row(*cells))
        args.output.parent.mkdir(parents=True, exist_ok=True)
        with args.output.open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows])
        print("| " + " | ".join(map(str, rows[-1])) + " |", flush=True)

    for name, make in (("GEVP n=500", gevp), ("QP n=100", qp)):
        for seed in range(10):
            solution = power_alm(*make(seed), eps_phi=1e-3, eps_A=1e-3)
            keep(f"{name} seed {seed}", "defaults", 1.0, solution)
    for name, make in (("GEVP n=500", gevp), ("QP n=100", qp)):
        whole, bare = overhead(lambda make=make: make(0), 1e-3, 9)  # type: ignore[misc]
        print(f"{name}: {whole:.0f} µs per gradient call, bare oracle {bare:.0f} µs")
    data = {name: features(args.data, name, args.n) for name in ("MNIST", "FashionMNIST")}
    for name, Z in data.items():
        for nu in (0.7, 0.8, 1.0):
            keep(f"clustering {name}", "PANOC, defaults", nu, power_alm(*clustering(Z), nu=nu))
    problem, x = clustering(data["MNIST"])
    D = problem.oracle.f_by_hand.doubled
    products, ratios = 0, []
    for _ in range(3):
        start = time.perf_counter()
        products = power_alm(problem, x, nu=0.8).gradient_calls
        whole = (time.perf_counter() - start) / products
        X = torch.rand(x.shape, dtype=x.dtype)
        start = time.perf_counter()
        for _ in range(200):
            D @ X
        ratios.append(whole / ((time.perf_counter() - start) / 200))
    print(f"clustering: a solve takes {statistics.median(ratios):.2f} × products × D@X")
    for nu, limit in LIMITS.items():
        solution = power_alm(*clustering(data["MNIST"]), nu=nu, max_outer=500, **PAPER)
        keep("clustering MNIST", "UPFAG, paper", nu, solution, limit)


if __name__ == "__main__":
    main()
