"""Cost of PANOC on top of its oracles: per gradient call, by size of x, and in memory.

    python -m experiments.benchmarks.cost

Every number is a median over rounds in one process; the quantities that are compared alternate.
Writes experiments/results/cost.csv, beside the shares of `profile`, and prints it as a table.
"""

import resource
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from experiments.atomic_files import write_beside
from experiments.counting_bar import track
from experiments.problems.deterministic import clustering, gevp, qp
from experiments.tables import markdown
from torch_powalm import Problem, power_alm, solvers
from torch_powalm.prox import Box, Proximable
from torch_powalm.solvers import Iterate, Smooth, run

RESULTS = Path(__file__).parent.parent / "results" / "cost.csv"
SHARE = "share of the time: "  # start of the quantities that `profile` measures
Row = tuple[str, str, float]


class Clock:
    """A hand-written oracle that adds up the time of its calls."""

    def __init__(self, oracle: object, spent: list[float]) -> None:
        for name in ("value_and_grad", "values", "vjp"):
            if hasattr(oracle, name):
                setattr(self, name, _timed(getattr(oracle, name), spent))


def _timed(function: Callable[..., object], spent: list[float]) -> Callable[..., object]:
    def timed(*args: Tensor) -> object:
        start = time.perf_counter()
        result = function(*args)
        spent[0] += time.perf_counter() - start
        return result

    return timed


@dataclass(frozen=True)
class Stopwatch(solvers.PANOC):
    """PANOC that adds up the time from the first to the last iteration of every subproblem."""

    spent: list[float] = field(default_factory=lambda: [0.0])

    def iterate(self, psi: Smooth, g: Proximable, x: Tensor, tol: float) -> Iterator[Iterate]:
        """Yield the iterates of PANOC."""
        start = time.perf_counter()
        try:
            yield from super().iterate(psi, g, x, tol)
        finally:
            self.spent[0] += time.perf_counter() - start


def per_gradient(name: str, problem: Problem, x: Tensor, eps: float, rounds: int = 15) -> list[Row]:
    """Microseconds per gradient call of a whole solve: in its oracles, in PANOC, in the rest."""
    spent, panoc = [0.0], Stopwatch()
    f, constraint = problem.oracle.f_by_hand, problem.oracle.blocks[0][1]
    problem = Problem(Clock(f, spent), equality=Clock(constraint, spent), g=problem.g)
    inside, solver, outside = [], [], []
    for _ in track(range(rounds), f"{name}: time per gradient call"):
        spent[0], panoc.spent[0], start = 0.0, 0.0, time.perf_counter()
        # Without the active-set method, PANOC makes all gradient calls.
        solution = power_alm(
            problem, x, lam=1e-3, active_set=False, solver=panoc, eps_phi=eps, eps_A=eps
        )
        whole, calls = time.perf_counter() - start, solution.gradient_calls
        inside.append(1e6 * spent[0] / calls)
        solver.append(1e6 * (panoc.spent[0] - spent[0]) / calls)
        outside.append(1e6 * (whole - spent[0]) / calls)
    return [
        (name, "µs per gradient call in the oracles", statistics.median(inside)),
        (name, "µs per gradient call in PANOC beside them", statistics.median(solver)),
        (name, "the same in the round least disturbed", min(solver)),
        (name, "µs per gradient call in all beside them", statistics.median(outside)),
        (name, "beside / in the oracles", statistics.median(map(_ratio, outside, inside))),
    ]


def of_the_product(problem: Problem, x: Tensor) -> list[Row]:
    """A whole solve, and the bare kernels of its iterations, over products × D@X.

    Inside a solve the operands of the product are less often in the cache than if the product
    alone is repeated.
    """
    f, spent = problem.oracle.f_by_hand, [0.0]
    D = f.doubled
    problem = Problem(Clock(f, spent), equality=problem.oracle.blocks[0][1], g=problem.g)
    whole, inside, panoc, gradient, product = [], [], [], [], []
    for _ in track(range(3), "clustering n=1000: time over that of the products"):
        product.append(_repeat(lambda: D @ x, 100))
        spent[0], start = 0.0, time.perf_counter()
        calls = power_alm(problem, x, nu=0.8).gradient_calls
        whole.append((time.perf_counter() - start) / calls)
        inside.append(spent[0] / calls)
        panoc.append(_repeat(_Kernels(D, x).panoc, 100))
        gradient.append(_repeat(_Kernels(D, x).proximal_gradient, 100))
    name = "clustering n=1000"
    return [
        (name, "solve / (products × D@X)", statistics.median(map(_ratio, whole, product))),
        (name, "f inside a solve / D@X", statistics.median(map(_ratio, inside, product))),
        (name, "solve / f inside it", statistics.median(map(_ratio, whole, inside))),
        (name, "bare kernels of PANOC / D@X", statistics.median(map(_ratio, panoc, product))),
        (
            name,
            "bare kernels of a proximal gradient step / D@X",
            statistics.median(map(_ratio, gradient, product)),
        ),
    ]


class _Kernels:
    """The tensor operations of one iteration, and nothing else."""

    def __init__(self, D: Tensor, x: Tensor) -> None:
        self.D, self.x = D, x
        self.d, self.grad, self.r = (torch.rand_like(x) for _ in range(3))
        self.rows = torch.rand(17, x.numel())
        self.weights = torch.rand(17)
        self.k = 0

    def proximal_gradient(self) -> tuple[Tensor, Tensor]:
        """ψ and ∇ψ at the next point, the curvature on the way, the prox, r with ‖r‖ and slope."""
        dot = torch.dot
        x = self.x + self.d
        grad_f = self.D @ x
        dot(x.view(-1), grad_f.view(-1)).item()
        r = torch.mv(x, x.sum(0))
        dot(r, r).item(), dot(r, r).item()
        w = torch.add(r, r, alpha=0.1)
        grad = grad_f + torch.addr(x.T @ w, w, x.sum(0))
        change = (grad - self.grad).view(-1)
        dot(change, change).item(), dot(self.d.view(-1), self.d.view(-1)).item()
        z = torch.sub(x, grad, alpha=1e-9).clamp(min=0.0)
        dot(z.view(-1), z.view(-1)).item()
        r_x = (x - z).mul_(0.5)
        flat = r_x.view(-1)
        dot(flat, flat).item(), dot(flat, grad.view(-1)).item()
        self.grad = grad
        return x, r_x

    def panoc(self) -> None:
        """The same, and a direction from seven pairs."""
        x, r_x = self.proximal_gradient()
        self.k = (self.k + 2) % 16
        self.rows[self.k].copy_(self.d.view(-1))
        self.rows[self.k + 1].copy_((r_x - self.r).view(-1))
        self.rows[-1].copy_(r_x.view(-1))
        torch.mm(self.rows[self.k + 1 :: 15 - self.k], self.rows.T).tolist()
        torch.mv(self.rows.T, self.weights).double().view(x.shape)
        self.r = r_x


class Chain:
    """Rosenbrock's chain, a cheap oracle that takes a solver many iterations."""

    def value(self, x: Tensor) -> float:
        """ψ(x)."""
        return self.value_and_grad(x)[0]

    def value_and_grad(self, x: Tensor) -> tuple[float, Tensor]:
        """ψ(x) and ∇ψ(x)."""
        gap, rest = x[1:] - x[:-1] ** 2, 1 - x[:-1]
        grad = torch.zeros_like(x)
        grad[:-1] = -400 * x[:-1] * gap - 2 * rest
        grad[1:] += 200 * gap
        return (100 * torch.dot(gap, gap) + torch.dot(rest, rest)).item(), grad


def by_size(rounds: int = 5) -> list[Row]:
    """Time of a PANOC iteration over that of its oracle, for x of growing size."""
    rows = []
    for n in track([10**3, 10**4, 10**5, 10**6], "time by size"):
        x = torch.full((n,), -1.0, dtype=torch.float64)
        ratios = []
        for _ in range(rounds):
            start = time.perf_counter()
            run(solvers.PANOC(), Chain(), Box(-2.0, 2.0), x, tol=1e-300, max_iter=30)
            iteration = (time.perf_counter() - start) / 30
            ratios.append(iteration / _repeat(lambda x=x: Chain().value_and_grad(x), 10))  # type: ignore[misc]
        rows.append((f"chain n={n}", "iteration / oracle", statistics.median(ratios)))
    return rows


def memory(n: int = 10**5, iterations: int = 5000) -> list[Row]:
    """Growth of the resident memory, in vectors of the size of x.

    The allocator releases and takes a few vectors from iteration to iteration, so medians over the
    500 iterations from the 500th on and over the last 500 are compared.
    """
    x = torch.full((n,), -1.2, dtype=torch.float64)
    x[::2] = 1.0
    pages = []
    iterates = solvers.PANOC().iterate(Chain(), Box(-2.0, 2.0), x, 1e-300)
    for _ in track(range(iterations), f"memory over {iterations} iterations"):
        next(iterates)
        pages.append(int(Path("/proc/self/statm").read_text().split()[1]))
    grown = statistics.median(pages[-500:]) - statistics.median(pages[500:1000])
    vectors = grown * resource.getpagesize() / (8 * n)
    return [(f"chain n={n}", "growth of memory from iteration 500 to 5000, vectors", vectors)]


def _repeat(function: Callable[[], object], times: int) -> float:
    function()
    start = time.perf_counter()
    for _ in range(times):
        function()
    return (time.perf_counter() - start) / times


def _ratio(a: float, b: float) -> float:
    return a / b


@torch.no_grad()
def main() -> None:
    """Measure, write, print."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    centers = 10 * torch.randn(10, 10, generator=generator)
    points = centers[torch.arange(1000) % 10] + torch.randn(1000, 10, generator=generator)
    rows = memory()
    rows += per_gradient("GEVP n=500", *gevp(0), eps=1e-3)
    rows += per_gradient("QP n=100", *qp(0), eps=1e-3)
    rows += of_the_product(*clustering(points))
    rows += by_size()
    table = [
        {"problem": problem, "quantity": quantity, "value": repr(value)}
        for problem, quantity, value in rows
    ]
    write_beside(RESULTS, table, lambda row: not row["quantity"].startswith(SHARE))
    print(markdown([row | {"value": f"{float(row['value']):.3g}"} for row in table]))


if __name__ == "__main__":
    main()
