"""Training without constraints, and quadratic penalties of fixed weight."""

from dataclasses import dataclass

from torch import Tensor

from experiments.constraint_bench.method import Base, PlainStep
from experiments.constraint_bench.task import Training


@dataclass(frozen=True)
class Unconstrained:
    """The loss alone."""

    def __call__(self, training: Training, base: Base) -> PlainStep:
        """A step that ignores the constraints."""
        optimizer = base(training.model.parameters())
        return PlainStep(training, optimizer, lambda loss, vectors: loss)


@dataclass(frozen=True)
class Penalty:
    """Loss plus weight/2 times the squared violations, summed.

    Args:
        weight: > 0.
        by_tolerance: divide each violation by its tolerance first, which only someone who knows the
            tolerances can do; a check that mixed units can be met.
    """

    weight: float
    by_tolerance: bool = False

    def __call__(self, training: Training, base: Base) -> PlainStep:
        """A step on the penalized loss."""

        def total(loss: Tensor, vectors: list[Tensor]) -> Tensor:
            for c, value in zip(training.constraints, vectors, strict=True):
                excess = value.clamp(min=0) if c.inequality else value
                if self.by_tolerance:
                    excess = excess / c.tolerance
                loss = loss + self.weight / 2 * excess.square().sum()
            return loss

        return PlainStep(training, base(training.model.parameters()), total)


SETTINGS = {
    "unconstrained": {"recommended": Unconstrained()},
    "penalty": {f"weight {w:g}": Penalty(w) for w in (0.01, 0.1, 1, 10, 1e2, 1e3, 1e4, 1e5)},
    "penalty by tolerance": {
        f"weight {w:g}": Penalty(w, by_tolerance=True) for w in (1e-4, 1e-3, 1e-2, 1e-1)
    },
}
