"""How often the defaults work: random problems of five families in three scalings.

    python -m experiments.benchmarks.robust [--seeds 10] [--peer-seeds 10] [--families NAME …]

    sphere      ½ xᵀCx on the unit sphere, n = 100
    QP          nonconvex QP with 8 inequalities in a box, n = 30
    clustering  Burer and Monteiro, 60 points in 10 blobs, r = 10
    Stiefel     ⟨X, CXN⟩ with XᵀX = I, 30 × 4
    NLS         nonlinear least squares with 5 nonlinear equalities, n = 20

Each as it is, with the objective × 1000 and with the constraints × 1000; tolerances 1e-4, plain
torch functions, seeds that were not used to choose defaults. Ours runs with its defaults on all,
peers with their recommended settings (and alpaqa with its balanced first penalty) on one scaling of
each of their seeds, for 2 seconds. pbalm needs functions in JAX; cooper, humancompatible-train and
mdmm, which make steps of Adam, would use up their time on each. Writes robust.csv, rows of the
families that were run in place of older ones.
"""

import argparse
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.benchmarks import peers
from experiments.benchmarks.machine import write_machine
from experiments.benchmarks.rows import RESULTS, Row, read, write
from experiments.benchmarks.ruler import Answer
from experiments.benchmarks.tasks import FIRST
from experiments.benchmarks.watch import Outcome, Task, Watch, run, warm_up
from experiments.progress import track
from torch_powalm import Problem, Solution, power_alm, prox

SCALINGS = {
    "as it is": (1.0, 1.0),
    "objective x 1000": (1e3, 1.0),
    "constraints x 1000": (1.0, 1e3),
}
NUS = (1.0, 0.8)
NAMES = ("alpaqa", "cyipopt", "scipy", "pygranso")
BUDGET = {"ours": 60.0, "peer": 2.0}  # seconds
COLUMNS = (
    *("family", "scaling", "seed", "method", "status", "own_status", "primal", "dual"),
    *("objective", "function_calls", "gradient_calls", "wall", "cpu"),
)
Built = tuple[Problem, Tensor]


def sphere(seed: int, f: float, c: float, n: int = 100) -> Built:
    """A quadratic on the sphere."""
    normal, uniform = _random(seed)
    C = 0.1 * normal(n, n)
    C = f * (C + C.T) / 2
    problem = Problem(lambda x: 0.5 * (x @ (C @ x)), equality=lambda x: c * (x @ x - 1).reshape(1))
    return problem, uniform(n)


def qp(seed: int, f: float, c: float, n: int = 30, m: int = 8) -> Built:
    """A nonconvex QP with inequalities."""
    normal, _ = _random(seed)
    eigenvalues, S = 50 * normal(n), normal(n, n)
    S = S / torch.linalg.matrix_norm(S, 2)
    Q, q, C = f * (S.T @ torch.diag(eigenvalues) @ S), f * 2 * normal(n), c * normal(m, n)
    b = C @ normal(n)
    problem = Problem(
        lambda x: 0.5 * (x @ (Q @ x)) + q @ x,
        inequality=lambda x: C @ x - b,
        g=prox.Box(-5.0, 5.0),
    )
    return problem, normal(n).clamp(-5, 5)


def clustering(seed: int, f: float, c: float, n: int = 60, r: int = 10, s: int = 10) -> Built:
    """Clustering of blobs."""
    normal, uniform = _random(seed)
    centres = 3 * normal(s, 10)
    points = (centres[torch.arange(n) % s] + 0.5 * normal(n, 10)).softmax(1)
    D = f * torch.cdist(points, points)
    problem = Problem(
        lambda X: (X * (D @ X)).sum(),
        equality=lambda X: c * (X @ X.sum(0) - 1),
        g=prox.NonNegativeBall(math.sqrt(s)),
    )
    return problem, 0.05 * uniform(n, r)


def stiefel(seed: int, f: float, c: float, n: int = 30, p: int = 4) -> Built:
    """A weighted trace on the Stiefel manifold."""
    normal, _ = _random(seed)
    C = normal(n, n)
    C = f * (C + C.T) / 2
    weights = torch.arange(1.0, p + 1, dtype=torch.float64)
    upper, eye = torch.triu_indices(p, p), torch.eye(p, dtype=torch.float64)
    problem = Problem(
        lambda X: (X * (C @ X) * weights).sum(),
        equality=lambda X: c * (X.T @ X - eye)[upper[0], upper[1]],
    )
    return problem, normal(n, p)


def nls(seed: int, f: float, c: float, n: int = 20, m: int = 5) -> Built:
    """Nonlinear least squares with nonlinear equalities that hold somewhere."""
    normal, _ = _random(seed)
    M, target, P, C = normal(40, n), normal(40), normal(m, n, n) / n, normal(m, n)

    def h(x: Tensor) -> Tensor:
        return (P @ x) @ x + torch.sin(C @ x)

    b = h(normal(n))

    def objective(x: Tensor) -> Tensor:
        Mx = M @ x
        return 0.5 * f * (torch.tanh(Mx) + 0.1 * Mx - target).square().sum()

    return Problem(objective, equality=lambda x: c * (h(x) - b)), normal(n)


def _random(seed: int) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """Normal and uniform numbers of one generator."""
    generator = torch.Generator().manual_seed(seed)
    settings: dict[str, Any] = {"dtype": torch.float64, "generator": generator}
    return (
        lambda *shape: torch.randn(*shape, **settings),
        lambda *shape: torch.rand(*shape, **settings),
    )


FAMILIES: dict[str, Callable[[int, float, float], Built]] = {
    "sphere": sphere,
    "QP": qp,
    "clustering": clustering,
    "Stiefel": stiefel,
    "NLS": nls,
}


def task(family: str, seed: int, scaling: str, eps: float = 1e-4) -> Task:
    """One random problem."""
    scales = SCALINGS[scaling]
    x_1 = FAMILIES[family](seed, *scales)[1]
    return Task(family, seed, x_1, eps, lambda: FAMILIES[family](seed, *scales)[0])


def ours(found: Task, nu: float) -> tuple[Outcome, str]:
    """A run with defaults, and the status it claims."""
    claimed: list[Solution] = []

    def solve(problem: Problem, x_1: Tensor, eps: float, watch: Watch) -> Answer:
        claimed.append(
            power_alm(problem, x_1, nu=nu, eps_phi=eps, eps_A=eps, max_seconds=watch.left)
        )
        return Answer(claimed[0].x, claimed[0].y)

    outcome = run(solve, found, BUDGET["ours"], autograd=True)
    return outcome, claimed[0].status.value if claimed else "exception"


def compare(
    seeds: int,
    peer_seeds: int,
    families: Iterable[str] = FAMILIES,
    nus: tuple[float, ...] = NUS,
    names: tuple[str, ...] = NAMES,
) -> list[Row]:
    """Ours on everything, and after it the peers on one scaling of each of their seeds."""
    modules = [peers.load(name) for name in names]
    cases = [(f, s, k) for f in families for s in SCALINGS for k in range(FIRST, FIRST + seeds)]
    rows = []
    for family, scaling, seed in track(cases, "random problems"):
        found = task(family, seed, scaling)
        row = {"family": family, "scaling": scaling, "seed": seed}
        for nu in nus:
            outcome, status = ours(found, nu)
            known = {"method": f"ours ν = {nu:g}", "own_status": status}
            rows.append(row | known | _numbers(outcome))
        if seed - FIRST >= peer_seeds or scaling != list(SCALINGS)[seed % len(SCALINGS)]:
            continue
        for module in modules:
            if isinstance(module, str):
                continue
            for method, settings in module.METHODS.items():
                for label, arguments in _used(settings):
                    outcome = run(module.solve, found, BUDGET["peer"], autograd=True, **arguments)
                    rows.append(row | {"method": f"{method}{label}"} | _numbers(outcome))
    return rows


def _used(settings: dict[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """The recommended settings, and those of alpaqa that balance its penalty."""
    used = [("", next(iter(settings.values())))]
    if "balanced" in settings:
        used.append((", balanced", settings["balanced"]))
    return used


def _numbers(outcome: Outcome) -> Row:
    found: Row = {"status": outcome.status, "wall": f"{outcome.wall:.4g}"}
    found |= {"cpu": f"{outcome.cpu:.4g}", "function_calls": outcome.function_calls}
    found["gradient_calls"] = outcome.gradient_calls
    if outcome.measured is not None:
        found["primal"] = f"{outcome.measured.primal:.3e}"
        found["dual"] = f"{outcome.measured.dual:.3e}"
        found["objective"] = f"{outcome.measured.objective:.8g}"
    return found


def main() -> None:
    """Run all and write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--peer-seeds", type=int, default=10)
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warm_up()
    ours(task("sphere", 0, "as it is"), 1.0)
    path = args.output / "robust.csv"
    rows = [row for row in read(path) if row["family"] not in args.families]
    for family in args.families:
        rows += compare(args.seeds, args.peer_seeds, [family])
        write(path, rows, COLUMNS)
    write_machine(args.output / "robust.json")
    own = [row for row in rows if row["method"].startswith("ours")]
    good = sum(row["own_status"] == "converged" for row in own)
    print(f"ours converged in {good} of {len(own)}")


if __name__ == "__main__":
    main()
