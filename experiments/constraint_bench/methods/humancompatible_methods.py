"""humancompatible-train: ALM, SSL-ALM, switching subgradients, penalty-barrier.

Recommended: the constructors' defaults, and for ALM the penalty 1 of its examples. SSL-ALM is ALM
with the primal optimizer in MoreauEnvelope. Switching subgradients take |A| of an equality, the
penalty-barrier method takes A ≤ 0 and −A ≤ 0.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from experiments.constraint_bench.method import Base, evaluate
from experiments.constraint_bench.task import Batch, Constraint, Training


@dataclass(frozen=True)
class HumanCompatible:
    """One of the dual optimizers.

    Args:
        kind: "ALM", "SSG" or "PBM".
        options: arguments of its constructor.
        smoothing: μ of MoreauEnvelope; None to step without it.
    """

    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    smoothing: float | None = None

    def __call__(self, training: Training, base: Base) -> "DualStep":
        """A training in progress."""
        from humancompatible.train import dual_optim

        optimizer = base(training.model.parameters())
        primal: Any = optimizer
        if self.smoothing is not None:
            primal = dual_optim.MoreauEnvelope(optimizer, mu=self.smoothing)
        if self.kind == "ALM":
            dual = self._alm(training.constraints)
        elif self.kind == "SSG":
            dual = dual_optim.SSG(m=sum(c.size for c in training.constraints), **self.options)
        else:
            m = sum(c.size if c.inequality else 2 * c.size for c in training.constraints)
            dual = dual_optim.PBM(m=m, epoch_length=base.steps_per_epoch, **self.options)
        return DualStep(training, optimizer, primal, dual, self.kind)

    def _alm(self, constraints: Any) -> Any:
        from humancompatible.train.dual_optim import ALM

        first, *others = constraints
        dual = ALM(m=first.size, is_ineq=first.inequality, **self.options)
        for c in others:
            dual.add_constraint_group(c.size, is_ineq=c.inequality)
        return dual


@dataclass
class DualStep:
    """The loop of its README: `forward_update`, backward, step."""

    training: Training
    optimizer: Optimizer
    primal: Any
    dual: Any
    kind: str

    def step(self, batch: Batch) -> None:
        """Make one step."""
        self.optimizer.zero_grad()
        loss, vectors, _ = evaluate(self.training, batch)
        parts = [self._form(*pair) for pair in zip(self.training.constraints, vectors, strict=True)]
        self.dual.forward_update(loss, torch.cat(parts)).backward()
        for p in self.training.model.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)  # MoreauEnvelope needs every gradient
        self.primal.step()

    def _form(self, constraint: Constraint, value: Tensor) -> Tensor:
        """The value of a block in the form that the method knows."""
        if constraint.inequality or self.kind == "ALM":
            return value
        return value.abs() if self.kind == "SSG" else torch.cat([value, -value])

    def end_epoch(self) -> None:
        """Nothing to close."""


def _alm(lr: float, penalty: float, smoothing: float | None = None) -> HumanCompatible:
    return HumanCompatible("ALM", {"lr": lr, "penalty": penalty}, smoothing)


SETTINGS = {
    "hct ALM": {
        "recommended": _alm(0.01, 1.0),
        "dual 0.1, penalty 1": _alm(0.1, 1.0),
        "dual 0.1, penalty 10": _alm(0.1, 10.0),
        "dual 1, penalty 10": _alm(1.0, 10.0),
    },
    "hct SSL-ALM": {
        "recommended": _alm(0.01, 1.0, smoothing=2.0),
        "dual 0.1, penalty 1": _alm(0.1, 1.0, smoothing=2.0),
        "dual 0.1, penalty 10": _alm(0.1, 10.0, smoothing=0.2),
        "dual 1, penalty 10": _alm(1.0, 10.0, smoothing=0.2),
    },
    "hct switching": {
        "recommended": HumanCompatible("SSG"),
        "tolerance 0.01": HumanCompatible("SSG", {"constraint_tol": 0.01}),
        "tolerance -0.01": HumanCompatible("SSG", {"constraint_tol": -0.01}),
        "scale 10": HumanCompatible("SSG", {"constraint_scale": 10.0}),
    },
    "hct penalty-barrier": {
        "recommended": HumanCompatible("PBM"),
        "duals from 0.01": HumanCompatible("PBM", {"init_duals": 0.01}),
        "duals from 1": HumanCompatible("PBM", {"init_duals": 1.0}),
        "gamma 0.9, penalty to 0.01": HumanCompatible(
            "PBM", {"gamma": 0.9, "init_duals": 0.1, "penalty_range": (0.01, 1.0)}
        ),
    },
}
