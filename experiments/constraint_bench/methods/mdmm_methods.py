"""mdmm: the modified differential multiplier method.

Recommended: damping 1, multipliers with the rate of the parameters, slack variables for
inequalities. Each constraint of mdmm has one scalar multiplier, so a vector becomes as many
constraints, which view its values.
"""

from dataclasses import dataclass

from torch import Tensor

from experiments.constraint_bench.method import Base, PlainStep
from experiments.constraint_bench.task import Training


@dataclass(frozen=True)
class ModifiedDifferential:
    """Descent in the parameters and ascent in the multipliers, by the same optimizer.

    Args:
        damping: of all constraints.
        dual_rate: rate of the multipliers over that of the parameters.
    """

    damping: float = 1.0
    dual_rate: float = 1.0

    def __call__(self, training: Training, base: Base) -> PlainStep:
        """A training in progress."""
        import mdmm

        now: list[list[Tensor]] = [[] for _ in training.constraints]
        objects = []
        for k, c in enumerate(training.constraints):
            kind = mdmm.MaxConstraint if c.inequality else mdmm.EqConstraint
            for i in range(c.size):
                view = lambda k=k, i=i: now[k][i]  # noqa: E731
                objects.append(kind(view, 0.0, damping=self.damping))
        module = mdmm.MDMM(objects)
        optimizer = module.make_optimizer(
            list(training.model.parameters()), optimizer=base, lr=base.lr
        )
        optimizer.param_groups[1]["lr"] *= self.dual_rate

        def total(loss: Tensor, vectors: list[Tensor]) -> Tensor:
            now[:] = [list(vector.unbind()) for vector in vectors]
            value: Tensor = module(loss).value
            return value

        return PlainStep(training, optimizer, total)


SETTINGS = {
    "mdmm": {
        "recommended": ModifiedDifferential(),
        "damping 10": ModifiedDifferential(10.0),
        "damping 100": ModifiedDifferential(100.0),
        "damping 10, dual rate 10": ModifiedDifferential(10.0, 10.0),
    }
}
