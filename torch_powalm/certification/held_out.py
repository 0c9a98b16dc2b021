"""HeldOut: held-out data that tell a training how strict it has to be."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torch_powalm.certification.certificate import Certificate
from torch_powalm.certification.certify import Kinds, Measure, certify, read_quantities
from torch_powalm.certification.evaluation_mode import evaluation_mode
from torch_powalm.certification.held_out_data import check_apart
from torch_powalm.certification.quantity import Quantity
from torch_powalm.result import ConstraintWarning
from torch_powalm.training.feasibility import Tolerance, check_tolerance, tolerance_of
from torch_powalm.training.registry import ConstraintRegistry


class HeldOut:
    """Held-out data for `margin="auto"`, or for the choice of a certified model.

    The same data must not serve for both, nor for `certify` afterwards; this raises.

        held_out = HeldOut(measure, margin_loader, kinds={"missed": Rates()})
        optimizer = PowerALMOptimizer(base, constraints, margin="auto", held_out=held_out)

    Args:
        measure: maps a batch to values of the batch blocks, as for `certify`. Models that it uses
            are put in evaluation mode while it runs.
        loader: batches of held-out data, which can be read again and again.
        kinds: what the values of each batch block are, by name.
        confidence: of the certificate that is the aim, in (0, 1).
        power: probability with which that certificate is to hold, in (0, 1).
        relative_size: size of the data of the certificate, relative to these, > 0.
        tolerance: violation that counts as met, as for `certify`.
        model: the model that `measure` uses; None to look for it there.
        seen: loaders whose samples must not be in `loader`, such as that of the training.
    """

    def __init__(
        self,
        measure: Measure,
        loader: Any,
        *,
        kinds: Kinds,
        confidence: float = 0.95,
        power: float = 0.95,
        relative_size: float = 1.0,
        tolerance: Tolerance = 0.0,
        model: nn.Module | None = None,
        seen: Sequence[Any] = (),
    ) -> None:
        if not callable(measure):
            raise TypeError(f"measure must be a function of a batch, got {type(measure).__name__}")
        for name, share in (("confidence", confidence), ("power", power)):
            if not 0 < share < 1:
                raise ValueError(f"{name} must be in (0, 1), got {share!r}")
        if not 0 < relative_size < math.inf:
            raise ValueError(f"relative_size must be positive and finite, got {relative_size!r}")
        if hasattr(loader, "__next__") or not hasattr(loader, "__iter__"):
            got = type(loader).__name__
            raise TypeError(f"loader must be iterable more than once, got {got}")
        check_apart("loader", loader, ((f"seen[{i}]", other) for i, other in enumerate(seen)))
        self.measure, self.loader, self.kinds = measure, loader, dict(kinds)
        self.confidence, self.power, self.relative_size = confidence, power, relative_size
        self.tolerance, self.model, self.seen = tolerance, model, tuple(seen)
        self._warned = False

    def certificate(
        self, constraints: ConstraintRegistry, *, candidates: int = 1, **settings: Any
    ) -> Certificate:
        """Return the certificate of the current model from these data.

        Args:
            constraints: the registry of the training.
            candidates: number of models among which these data may choose; the error of the
                confidence is divided by it, so that the certificate of the chosen one is right.
            **settings: passed on to `certify`.
        """
        if not (isinstance(candidates, int) and candidates >= 1):
            raise ValueError(f"candidates must be a positive integer, got {candidates!r}")
        confidence = 1 - (1 - self.confidence) / candidates
        given = {"kinds": self.kinds, "tolerance": self.tolerance, "seen": self.seen, **settings}
        with evaluation_mode(self.measure, self.model), torch.random.fork_rng(devices=[]):
            return certify(constraints, self.measure, self.loader, confidence, **given)

    @torch.no_grad()
    def margins(
        self,
        constraints: ConstraintRegistry,
        training: Mapping[str, Tensor],
        multipliers: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """Return how much stricter each inequality of the batch must be.

            margin = max(held-out value + allowance − training value, 0)

        With it, the multipliers see the held-out value plus the allowance that a certificate
        needs (`Quantity.allowance`), and never a bound looser than the one asked for.

        Args:
            constraints: the registry of the training.
            training: values of the batch blocks on the training data.
            multipliers: multipliers by block; those at work share the error of the certificate.
        """
        check_tolerance(self.tolerance, constraints.blocks)
        limits = {name: tolerance_of(name, self.tolerance, 0.0) for name in constraints.blocks}
        with evaluation_mode(self.measure, self.model), torch.random.fork_rng(devices=[]):
            found = read_quantities(constraints, self.measure, self.loader, self.kinds, limits)
        self._warn_of_few_samples(found)
        names = [name for name in training if constraints.blocks[name].inequality]
        at_work = sum(int((y > 0).sum()) for name, y in multipliers.items() if name in found)
        margins = {}
        for name in names:
            values, y = training[name], multipliers[name]
            needed = []
            for q, y_i in zip(found[name], y.tolist(), strict=True):
                shares = max(1, at_work + (y_i <= 0))
                errors = (1 - self.confidence) / shares, (1 - self.power) / shares
                needed.append(q.estimate - q.asked + q.allowance(*errors, self.relative_size))
            margins[name] = (torch.tensor(needed).to(values) - values).clamp(min=0)
        return margins

    def _warn_of_few_samples(self, found: Mapping[str, list[Quantity]]) -> None:
        """Warn once if no certificate from so few samples could hold."""
        if self._warned:
            return
        self._warned = True
        error, ratio = 1 - self.confidence, self.relative_size
        for name, quantities in found.items():
            for entry, q in enumerate(quantities):
                if ratio >= 1 and not q.out_of_reach(error):
                    continue
                needed = q.enough(error)
                if math.isfinite(needed) and needed > ratio * q.samples:
                    warnings.warn(
                        f"a certificate of {name!r}, entry {entry}, from {ratio * q.samples:.0f} "
                        f"samples cannot hold: it needs at least {needed:.0f}",
                        ConstraintWarning,
                        stacklevel=5,
                    )

    def __deepcopy__(self, memo: dict[int, Any]) -> "HeldOut":
        return self  # the data belong to the process, not to an optimizer
