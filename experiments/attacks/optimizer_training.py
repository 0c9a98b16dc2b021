"""The model and the data of a random training, and the training by the optimizer."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from experiments.attacks.findings import FindingError
from experiments.attacks.hand_loop import F64
from experiments.attacks.random_case import BASES, SCHEDULES, Case
from torch_powalm import ConstraintRegistry, PowerALMOptimizer, prox


class Run:
    """One of the two: a model, its base and its data.

    Args:
        case: the training.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        generator = torch.Generator().manual_seed(case.seed)
        self.data = torch.randn(12, 6, 3, generator=generator, dtype=F64).to(case.dtype)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(case.dtype)
        with torch.no_grad():
            for p in self.model.parameters():
                p.copy_(0.5 * torch.randn(p.shape, generator=generator, dtype=F64))
        self.params = list(self.model.parameters())
        groups: Any = self.params
        if case.two_groups:
            groups = [{"params": self.params[:1]}, {"params": self.params[1:], "lr": 0.003}]
        self.base = BASES[case.base](groups)

    def static(self, name: str) -> Tensor:
        """Return the value of a block of the parameters."""
        first, last = self.model[0], self.model[2]
        if name == "rows":
            return first.weight.square().sum(1) - 1
        if name == "total":
            return last.weight.abs().sum().reshape(1) - 1.5
        return last.bias - 0.1

    def batch(self, step: int, part: int) -> tuple[Tensor, dict[str, Any], dict[str, Any]]:
        """Return the loss of a micro-batch, the values of its blocks, and the true ones."""
        case = self.case
        x = self.data[(step * case.parts + part) % len(self.data)]
        rows = 4 + (step + part) % 3
        out = self.model(x[:rows])
        loss = (out - x[:rows, :2].sin()).square().mean()
        if step in case.spoiled:
            loss = loss * math.nan
        label = torch.arange(rows) % (2 + (step + part) % 2)  # sometimes without the last class
        one_hot = nn.functional.one_hot(label, 3).to(out.dtype)
        count = one_hot.sum(0)
        each = out.square().sum(1)
        values: dict[str, Any] = {
            "value": out[:, 0].tanh().mean().reshape(1) - 0.1,
            "counts": (each @ one_hot / count.clamp(min=1) - 0.3, count),
            "rate": torch.stack([out[:, 1].sigmoid().sum(), out.new_tensor(float(rows))]),
            "grid": self.model(self.data[0, :2]).square().mean().reshape(1) - 0.05,
        }
        hard = (out.detach() > 0).to(out.dtype)
        true: dict[str, Any] = {
            "value": hard[:, 0].mean().reshape(1) - 0.3,
            "counts": (hard[:, 1] @ one_hot / count.clamp(min=1) - 0.2, count),
            "rate": torch.stack([hard[:, 1].sum(), out.new_tensor(float(rows))]),
            "grid": hard[:, 0].mean().reshape(1) - 0.1,
        }
        names = [b.name for b in case.blocks if b.kind != "static"]
        return (
            loss,
            {name: values[name] for name in names},
            {name: true[name] for name in names if name in case.strict},
        )


class Ours(Run):
    """A training by the optimizer."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        constraints = ConstraintRegistry()
        for block in case.blocks:
            register = constraints.inequality if block.inequality else constraints.equality
            if block.kind == "static":
                register(block.name, lambda name=block.name: self.static(name), scale=block.scale)
            else:
                rate = block.kind == "statistics"
                register(
                    block.name,
                    size=block.size,
                    from_statistics=(lambda s: s[:1] / s[1:2] - 0.2) if rate else None,
                    latest=block.latest,
                    scale=block.scale,
                )
        terms = {self.params[3]: prox.Box(-0.2, 0.2)} if case.projected else None
        self.optimizer = PowerALMOptimizer(self.base, constraints, prox=terms, **case.settings)
        self.schedule = SCHEDULES[case.schedule](self.optimizer)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=case.scaled)
        self.parts_of_updates: list[Any] = []
        self.updates: list[tuple[float, float, float]] = []
        self._listen()

    def _listen(self) -> None:
        """Record what an update measures, and what it returns."""
        units, optimizer = self.optimizer.units, self.optimizer
        part, update = units.part, optimizer.update_multipliers

        def recorded_part(*args: Any) -> Any:
            self.parts_of_updates.append(part(*args))
            return self.parts_of_updates[-1]

        def recorded_update(*args: Any, **exact: Any) -> Any:
            k = optimizer.dual.k
            record = update(*args, **exact)
            if optimizer.dual.k > k:
                self.updates.append((record.primal_residual, record.sigma, optimizer.dual.beta))
            return record

        units.part = recorded_part
        optimizer.update_multipliers = recorded_update

    def backward(self, step: int) -> Any:
        """Compute the gradients of a step; return the last loss."""
        case, optimizer, loss = self.case, self.optimizer, None
        optimizer.zero_grad(set_to_none=step % 3 > 0)
        every = [self.batch(step, part) for part in range(case.parts)]
        window = [values for _, values, _ in every] if case.window else None
        for loss, values, strict in every:
            if values:
                told = optimizer.augment(
                    loss, strict=strict or None, samples=case.samples, window=window, **values
                )
                if not (told == loss or (told.isnan() and loss.isnan())):
                    raise FindingError("augment changed the value of the loss")
                loss = told
            self.scaler.scale(loss / case.parts).backward(retain_graph=case.window)
        return loss

    def step(self, step: int) -> None:
        """Take a step, and update the multipliers if it is time."""
        case, optimizer = self.case, self.optimizer
        if case.closure:
            optimizer.step(lambda: self.backward(step))
        else:
            self.backward(step)
            self.scaler.unscale_(optimizer)
            if case.clipped:
                optimizer.backward_constraints()
                nn.utils.clip_grad_norm_(self.params, 0.5)
            self.scaler.step(optimizer)
            self.scaler.update()
        self.schedule.step()
        if optimizer.schedule.updates == "epoch" and step % case.every == case.every - 1:
            optimizer.update_multipliers()
