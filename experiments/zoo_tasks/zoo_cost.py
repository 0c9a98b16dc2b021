"""`python -m experiments.zoo_tasks.zoo_cost` compares a step with the zoo to one written by hand.

Both train the same network of three layers (32, 128, 128, 1 or 2) on batches of 256 rows, one step
of the one after one step of the other. Prints the median ratio of their CPU times, and how far the
weights are apart at the end. Writes experiments/results/zoo_cost.csv.
"""

import argparse
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.atomic_files import write_csv
from experiments.zoo_tasks.batches_by_hand import FIDELITY, LOSSES, RATES, B, Call, Twin
from experiments.zoo_tasks.functions_by_hand import AT_POINTS, GRID, POINTS, WEIGHTS, slope
from torch_powalm import ConstraintRegistry, PowerALMOptimizer, zoo

TABLE = Path("experiments/results/zoo_cost.csv")
COLUMNS = ("entry", "ratio", "difference_of_weights")
BATCHES, ROWS = 8, 256
BY_HAND: dict[str, Twin] = {**RATES, **LOSSES, **WEIGHTS, **AT_POINTS, **FIDELITY}


def _batch(name: str, call: Any, **settings: Any) -> Twin:
    def register(c: ConstraintRegistry, m: nn.Module) -> Call:
        entry = getattr(zoo, name)(c, B, **settings)
        return lambda x, z, y, g: call(entry, x, z, y, g)

    return register


def _static(name: str, *arguments: Any, **settings: Any) -> Twin:
    def register(c: ConstraintRegistry, m: Any) -> None:
        given = [a(m) if callable(a) else a for a in arguments]
        getattr(zoo, name)(c, B, *given, **settings)

    return register


def zoo_twins() -> dict[str, Twin]:
    """The entries of the zoo, with the settings of the twins written by hand."""
    rate: dict[str, Any] = {name: {"bound": 0.1} for name in RATES}
    rate |= {"precision": {"bound": 0.5}, "coverage": {"low": 0.3, "high": 0.4}}
    rate |= {n: {"bound": 0.02} for n in RATES if n.startswith(("demo", "equal"))}
    found: dict[str, Twin] = {}
    for name, settings in rate.items():
        parity, labels = name in ("demographic_parity",), name not in ("coverage",)
        fair = name.startswith(("demo", "equal"))

        def call(e: Any, x: Any, z: Any, y: Any, g: Any, p: Any = (parity, labels, fair)) -> Any:
            given = [] if p[0] or not p[1] else [y]
            return e(z, *given, **({"group": g} if p[2] else {}))

        found[name] = _batch(name, call, **settings)
    groups: dict[str, Any] = {"groups": 2, "bound": 0.5}
    of = {
        "class_loss": ({"classes": 2, "bound": 0.5}, lambda e, x, z, y, g: e(z[:, 0].square(), y)),
        "group_loss": (groups, lambda e, x, z, y, g: e(z[:, 0].square(), g)),
        "worst_group_loss": (groups, lambda e, x, z, y, g: e(z[:, 0].square(), g)),
        "sample_loss": (
            {"samples": 2048, "bound": 0.5},
            lambda e, x, z, y, g: e(z[:, 0].square(), torch.arange(len(z))),
        ),
        "loss_quantile": (
            {"quantile": 0.9, "bound": 0.5},
            lambda e, x, z, y, g: e(z[:, 0].square()),
        ),
    }
    found |= {name: _batch(name, call, **settings) for name, (settings, call) in of.items()}
    layer = lambda m: m[2]  # noqa: E731
    for name in ("orthonormal", "unit_norm", "symmetric", "positive_definite", "doubly_stochastic"):
        found[name] = _static(name, layer)
    found["spectral_norm"] = _static("spectral_norm", layer, bound=1.0)
    found["lipschitz"] = _static("lipschitz", lambda m: [m[2], m[4]], bound=1.0)
    found["l1_budget"] = _static("l1_budget", layer, bound=9.0)
    found["l0_budget"] = _static("l0_budget", lambda m: m.gates, bound=9.0)
    whole = lambda m: m  # noqa: E731
    at: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "monotone": ((), {"increasing": [0]}),
        "convex": ((), {}),
        "bounded": ((), {"low": 0.0}),
        "boundary": ((1.0,), {}),
        "initial": ((1.0,), {}),
        "normal_derivative": ((torch.eye(32)[0], 1.0), {}),
    }
    for name, (arguments, settings) in at.items():
        found[name] = _static(name, whole, *arguments, points=POINTS, **settings)
    found["conservation"] = _static("conservation", whole, GRID)
    return found | _with_functions()


def _with_functions() -> dict[str, Twin]:
    """Entries that take functions or a reference."""

    def invariant(c: ConstraintRegistry, m: nn.Module) -> None:
        zoo.invariant(c, "block", m, torch.neg, points=POINTS)

    def equivariant(c: ConstraintRegistry, m: nn.Module) -> None:
        zoo.equivariant(c, "block", m, torch.neg, lambda y: y, points=POINTS)

    def pde(c: ConstraintRegistry, m: nn.Module) -> None:
        zoo.pde_residual(c, "block", m, lambda m, x: slope(m).sum(1), points=POINTS)

    def near(name: str) -> Twin:
        def register(c: ConstraintRegistry, m: Any) -> Any:
            entry = getattr(zoo, name)(c, "block", m.reference, bound=0.1)
            return lambda x, z, y, g: entry(z, x)

        return register

    def features(c: ConstraintRegistry, m: Any) -> Any:
        entry = zoo.feature_distance(c, "block", bound=0.1)

        def call(x: Tensor, z: Tensor, y: Tensor, g: Tensor) -> Any:
            with torch.no_grad():
                goal = m.reference(x)
            return entry(z, goal)

        return call

    kinds = ("target_kl", "forgetting", "output_distance")
    functions: dict[str, Twin] = {"invariant": invariant, "equivariant": equivariant}
    return functions | {
        "pde_residual": pde,
        "feature_distance": features,
        **{n: near(n) for n in kinds},
    }


class Run:
    """A training with one twin."""

    def __init__(self, name: str, twin: Twin, steps: int) -> None:
        torch.manual_seed(0)
        layers = (nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
        self.model: Any = nn.Sequential(*layers, nn.Linear(128, 2 if name in FIDELITY else 1))
        reference = zoo.frozen_copy(self.model)
        with torch.no_grad():
            for p in reference.parameters():
                p += 0.05 * torch.randn_like(p)
        gates = zoo.HardConcrete(128)
        parameters = [*self.model.parameters(), *gates.parameters()]
        object.__setattr__(self.model, "reference", reference)  # not one of its layers
        object.__setattr__(self.model, "gates", gates)
        self.constraints = ConstraintRegistry()
        self.call = twin(self.constraints, self.model)
        base = torch.optim.Adam(parameters, lr=1e-3)
        self.optimizer = PowerALMOptimizer(base, self.constraints, total_steps=steps)

    def step(self, x: Tensor, y: Tensor, g: Tensor) -> None:
        """One step of training."""
        self.optimizer.zero_grad()
        z = self.model(x)
        loss = (z[:, 0] - y).square().mean()
        if self.call is not None:
            loss = self.optimizer.augment(loss, block=self.call(x, z, y, g))
        loss.backward()
        self.optimizer.step()


def compare(name: str, twin: Twin, steps: int) -> tuple[float, float]:
    """Median ratio of step times, and largest difference of the weights after as many steps."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(BATCHES, ROWS, 32, generator=generator)
    y, g = (x[..., :4].sum(2) > 0).long(), (x[..., 5] > 0).long()
    runs = [Run(name, t, steps) for t in (twin, BY_HAND[name])]
    ratios = []
    for k in range(steps):
        seconds = []
        for run in runs if k % 2 else runs[::-1]:
            start = time.thread_time()
            run.step(x[k % BATCHES], y[k % BATCHES], g[k % BATCHES])
            seconds.append(time.thread_time() - start)
        ours, other = seconds if k % 2 else seconds[::-1]
        ratios.append(ours / other)
    ends = [torch.cat([p.detach().reshape(-1) for p in run.model.parameters()]) for run in runs]
    return statistics.median(ratios[steps // 4 :]), float((ends[0] - ends[1]).abs().max())


def main() -> None:
    """Compare all, one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--entries", nargs="+")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    for name, twin in zoo_twins().items():
        if given.entries and name not in given.entries:
            continue
        ratio, difference = compare(name, twin, given.steps)
        cells = [name, f"{ratio:.3f}", f"{difference:.1e}"]
        rows.append(dict(zip(COLUMNS, cells, strict=True)))
        print(*cells, flush=True)
    if not given.entries:
        write_csv(TABLE, rows)


if __name__ == "__main__":
    main()
