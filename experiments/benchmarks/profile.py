"""Share of each part of the code in the time of a solve, for the GEVP and a QP.

    python -m experiments.benchmarks.profile

The time of a torch operation counts for the file that calls it. The profiler slows short Python
functions down, so the shares are rough. Writes them into experiments/results/cost.csv.
"""

import cProfile
import pstats
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.atomic_files import write_beside
from experiments.benchmarks.cost import RESULTS, SHARE
from experiments.problems.deterministic import gevp, qp
from experiments.tables import markdown
from torch_powalm import Problem, power_alm

PARTS = {
    "deterministic.py": "oracles",
    "oracle.py": "evaluation of a point",
    "problem.py": "ψ and the certificate",
    "subproblem.py": "ψ and the certificate",
    "kkt_certificate.py": "ψ and the certificate",
    "dual.py": "⟨y, r⟩ + βφ(r) and its weight",
    "functional.py": "⟨y, r⟩ + βφ(r) and its weight",
    "lbfgs.py": "L-BFGS: pairs and direction",
    "prox_gradient.py": "proximal steps, curvature, inner products",
    "panoc.py": "search of PANOC",
    "active_set.py": "active-set end",
    "linearization.py": "active-set end",
    "box.py": "prox",
    "zero.py": "prox",
    "base.py": "driver of the inner solver",
    "residual_estimate.py": "driver of the inner solver",
}
Place = tuple[str, int, str]  # file, line, function


def shares(problem: Problem, x: Tensor, solves: int = 5) -> dict[str, float]:
    """Share of the time by part, the largest first."""
    power_alm(problem, x, eps_phi=1e-3, eps_A=1e-3)
    profiler = cProfile.Profile()
    with profiler:
        for _ in range(solves):
            power_alm(problem, x, eps_phi=1e-3, eps_A=1e-3)
    found: Counter[str] = Counter()
    stats: dict[Place, Any] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    for place, (_, _, own, _, callers) in stats.items():
        if place[0] != "~":  # "~" is the file name of built-in functions
            found[_part(place)] += own
            continue
        for caller, (_, _, of_caller, _) in callers.items():
            found[_part(caller)] += of_caller
    return {part: time / sum(found.values()) for part, time in found.most_common()}


def _part(place: Place) -> str:
    return PARTS.get(Path(place[0]).name, "the rest")


@torch.no_grad()
def main() -> None:
    """Profile, write, print."""
    torch.set_num_threads(1)
    rows = [
        {"problem": name, "quantity": SHARE + part, "value": f"{share:.3f}"}
        for name, (problem, x) in {"GEVP n=500": gevp(0), "QP n=100": qp(0)}.items()
        for part, share in shares(problem, x).items()
    ]
    write_beside(RESULTS, rows, lambda row: row["quantity"].startswith(SHARE))
    print(markdown(rows))


if __name__ == "__main__":
    main()
