"""Trajectories of small trainings and solves, for `experiments.benchmarks.trajectories`.

A fresh process runs this file with one version of torch_powalm (public names only) and saves the
parameters after every step, the multipliers after every update and the points of every solve.
"""

import inspect
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import torch_powalm
from torch_powalm import ConstraintRegistry, PowerALMOptimizer, power_alm, prox, solvers

PROBLEMS = Path(__file__).parent.parent / "problems" / "deterministic.py"
EPOCHS, BATCHES, CLASSES, POWERS = 4, 6, 5, (1.0, 0.7)


class Training:
    """A classifier with constraints on its parameters and on the batch, and its trajectory."""

    def __init__(self, base: Callable[[Any], torch.optim.Optimizer], nu: float) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, CLASSES))
        constraints = ConstraintRegistry()
        constraints.equality("unit_rows", lambda: self.model[0].weight.square().sum(1) - 1)
        constraints.inequality("budget", lambda: self.model[2].weight.abs().sum() - 8.0)
        constraints.inequality("class_loss", size=CLASSES)
        self.optimizer = PowerALMOptimizer(
            base(self.model.parameters()),
            constraints,
            nu=nu,
            beta_1=0.1,  # turns the automatic rule off, which is newer
            omega=1.2,
            prox={self.model[2].bias: prox.Box(-0.1, 0.1)},
        )
        self.trace: list[Tensor] = []

    def loss(self, x: Tensor, target: Tensor, network: nn.Module | None = None) -> Tensor:
        """The augmented loss of a batch."""
        losses = cross_entropy((network or self.model)(x), target, reduction="none")
        one_hot = nn.functional.one_hot(target, CLASSES).to(losses.dtype)
        count = one_hot.sum(0)
        class_loss = losses @ one_hot / count.clamp(min=1) - 0.5
        return self.optimizer.augment(losses.mean(), class_loss=(class_loss, count))

    def record(self) -> None:
        """Append all parameters."""
        self.trace.append(
            torch.cat([p.detach().flatten().clone() for p in self.model.parameters()])
        )

    def update(self) -> None:
        """Update the multipliers and append them, β and σ."""
        record = self.optimizer.update_multipliers()
        self.trace.append(self.optimizer.dual.y.clone())
        numbers = record.primal_residual, record.beta, record.sigma, record.y_norm
        self.trace.append(torch.tensor(numbers, dtype=torch.float64))


def batches(share: int = 0, shares: int = 1) -> list[tuple[Tensor, Tensor]]:
    """The batches, or one rank's share of each."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(BATCHES, 20, 8, generator=generator)
    return [(b[share::shares], b[share::shares, :CLASSES].argmax(1)) for b in x]


def sgd(params: Any) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)


def adam(params: Any) -> torch.optim.Optimizer:
    """Adam, with a small step."""
    return torch.optim.Adam(params, lr=0.01)


def lbfgs(params: Any) -> torch.optim.Optimizer:
    """L-BFGS, which evaluates a closure several times in a step."""
    return torch.optim.LBFGS(params, lr=0.1, max_iter=4, line_search_fn="strong_wolfe")


def train(base: Callable[[Any], torch.optim.Optimizer], nu: float) -> list[Tensor]:
    """A loop whose steps get a closure."""
    run = Training(base, nu)
    for _ in range(EPOCHS):
        for x, target in batches():

            def closure(x: Tensor = x, target: Tensor = target) -> Tensor:
                run.optimizer.zero_grad()
                loss = run.loss(x, target)
                loss.backward()
                return loss

            run.optimizer.step(closure)
            run.record()
        run.update()
    return run.trace


def train_scaled(nu: float) -> list[Tensor]:
    """Mixed precision with a GradScaler, whose first scale overflows."""
    run = Training(adam, nu)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=3)
    for _ in range(EPOCHS):
        for x, target in batches():
            run.optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = run.loss(x, target)
            scaler.scale(loss).backward()
            scaler.step(run.optimizer)
            scaler.update()
            run.record()
        run.update()
    return run.trace


def train_accumulated(nu: float) -> list[Tensor]:
    """A step after every second batch."""
    run = Training(sgd, nu)
    for _ in range(EPOCHS):
        for i, (x, target) in enumerate(batches()):
            (run.loss(x, target) / 2).backward()
            if i % 2 == 1:
                run.optimizer.step()
                run.optimizer.zero_grad()
                run.record()
        run.update()
    return run.trace


def train_on_ranks(nu: float) -> list[Tensor]:
    """One of two ranks under DistributedDataParallel; the process group is ready."""
    run = Training(adam, nu)
    network = nn.parallel.DistributedDataParallel(run.model)
    for _ in range(EPOCHS):
        for x, target in batches(torch.distributed.get_rank(), 2):
            run.optimizer.zero_grad()
            run.loss(x, target, network).backward()
            run.optimizer.step()
            run.record()
        run.update()
    return run.trace


def train_by_lightning(nu: float) -> list[Tensor]:
    """Two epochs, a checkpoint, and two more epochs of a new trainer that resumes it."""
    import lightning

    from torch_powalm.lightning import PowerALMCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.run = Training(adam, nu)
            self.model = self.run.model

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self.run.optimizer

        def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            self.run.record()
            return self.run.loss(*batch)

    def fit(epochs: int, path: Path | None = None) -> tuple[Any, Module]:
        module = Module()
        trainer = lightning.Trainer(
            accelerator="cpu",
            callbacks=[PowerALMCallback()],
            max_epochs=epochs,
            **dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False),
            enable_model_summary=False,
        )
        loader = torch.utils.data.DataLoader(batches(), batch_size=None)
        trainer.fit(module, loader, ckpt_path=path)
        return trainer, module

    trainer, first = fit(EPOCHS // 2)
    with tempfile.TemporaryDirectory() as folder:
        trainer.save_checkpoint(path := Path(folder) / "middle.ckpt")
        _, second = fit(EPOCHS, path)
    second.run.record()
    return [*first.run.trace, *second.run.trace, second.run.optimizer.dual.y]


def solve(name: str, solver: Any, nu: float, lam: float | None) -> list[Tensor]:
    """The points of a solve and its multipliers, on one of the paper's problems."""
    problems = runpy.run_path(str(PROBLEMS))
    if name == "clustering":
        points = torch.randn(60, 5, generator=torch.Generator().manual_seed(2))
        problem, x_1 = problems["clustering"](points, r=6, s=4, scale=0.1)
    else:
        problem, x_1 = problems[name](0, n=50)
    settings: dict[str, Any] = {"lam": lam, "max_outer": 40, "max_inner": 2000}
    if "active_set" in inspect.signature(power_alm).parameters:
        settings["active_set"] = lam is None  # once, lam switched both
    trace: list[Tensor] = []
    solution = power_alm(
        problem,
        x_1,
        nu=nu,
        solver=solver,
        callback=lambda record, x: trace.append(x.clone()),
        **settings,
    )
    return [*trace, solution.x, solution.y, torch.tensor(solution.function_calls)]


def cases() -> Iterator[tuple[str, Callable[[], list[Tensor]]]]:
    """All cases of one process, by name."""
    for nu in POWERS:
        for base in (sgd, adam, lbfgs):
            yield f"{base.__name__}, ν = {nu}", lambda base=base, nu=nu: train(base, nu)
        yield f"mixed precision, ν = {nu}", lambda nu=nu: train_scaled(nu)
        yield f"accumulation, ν = {nu}", lambda nu=nu: train_accumulated(nu)
        yield f"Lightning, resumed, ν = {nu}", lambda nu=nu: train_by_lightning(nu)
        for solver in (solvers.PANOC(), solvers.UPFAG()):
            for name in ("gevp", "qp", "clustering"):
                for lam in (None, 1e-2):
                    title = f"{type(solver).__name__}, {name}, ν = {nu}, λ = {lam}"
                    yield title, lambda a=(name, solver, nu, lam): solve(*a)


def record(output: Path) -> None:
    """Run all cases in this process, or those of a rank if RANK is set, and save their traces."""
    if not Path(torch_powalm.__file__).is_relative_to(Path.cwd()):
        raise SystemExit(f"torch_powalm must be in the working folder, got {torch_powalm.__file__}")
    torch.set_num_threads(1)
    found: dict[str, list[Tensor]] = {}
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        for nu in POWERS:
            found[f"two ranks, ν = {nu}"] = train_on_ranks(nu)
        torch.distributed.destroy_process_group()
    else:
        for name, run in cases():
            found[name] = run()
    torch.save(found, output)


if __name__ == "__main__":
    record(Path(sys.argv[1]))
