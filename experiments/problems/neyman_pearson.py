"""Neyman–Pearson classification: a bound on the missed images of some classes."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from experiments.network import TwoLayer
from torch_powalm import ConstraintRegistry


@dataclass(frozen=True)
class NeymanPearson:
    """Classify well while images of a group of classes are rarely missed.

        minimize    mean cross-entropy of the images outside the group
        subject to  share of the group's images that are assigned to other classes ≤ rate

    The share has no gradient. Its smooth proxy is the mean of −log₂ p, where p is the probability
    that the network assigns to the group; for a group of one class, every miss counts at least 1.
    (The mean of 1 − p is closer to the share, but the loss drives p to 0, where the gradient of
    1 − p vanishes.)

    Args:
        group: the classes that must not be missed, each in 0, …, 9.
        rate: largest false-negative rate, in (0, 1).
        tolerance: largest violation of a feasible network, ≥ 0.
    """

    group: tuple[int, ...]
    rate: float
    tolerance: float

    inequality = True
    size = 1

    def __post_init__(self) -> None:
        if not self.group or not set(self.group) < set(range(10)):
            raise ValueError(f"group must hold some of the classes 0 to 9, got {self.group!r}")
        if not 0 < self.rate < 1:
            raise ValueError(f"rate must be in (0, 1), got {self.rate!r}")
        if not self.tolerance >= 0:
            raise ValueError(f"tolerance must be nonnegative, got {self.tolerance!r}")

    def tightened(self, margin: float) -> "NeymanPearson":
        """The same task with a smaller rate."""
        return replace(self, rate=self.rate - margin)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of the images outside the group."""
        others = ~self._members(labels)
        return cross_entropy(outputs[others], labels[others])

    def usual_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of all images, the loss of a training without constraint."""
        return cross_entropy(outputs, labels)

    def register(self, constraints: ConstraintRegistry, network: TwoLayer) -> None:
        """Register the rate as an inequality of the batch, computed from sums."""
        constraints.inequality("missed", size=1, from_statistics=self._excess)

    def batch_values(
        self, outputs: Tensor, labels: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Sums of the smooth proxy and of the true misses."""
        return {"missed": self._smooth(outputs, labels)}, {"missed": self._true(outputs, labels)}

    def proxy(self, network: TwoLayer, outputs: Tensor, labels: Tensor) -> Tensor:
        """The constraint with the smooth proxy."""
        return self._excess(self._smooth(outputs, labels))

    def strict(self, network: TwoLayer, outputs: Tensor, labels: Tensor) -> Tensor:
        """The constraint with the true share."""
        return self._excess(self._true(outputs, labels))

    def _members(self, classes: Tensor) -> Tensor:
        return torch.isin(classes, torch.tensor(self.group))

    def _smooth(self, outputs: Tensor, labels: Tensor) -> Tensor:
        members = self._members(labels)
        log_p = outputs[members].log_softmax(1)[:, list(self.group)].logsumexp(1)
        return torch.stack([-log_p.sum() / math.log(2), members.sum().to(outputs)])

    def _true(self, outputs: Tensor, labels: Tensor) -> Tensor:
        members = self._members(labels)
        missed = ~self._members(outputs[members].argmax(1))
        return torch.stack([missed.sum(), members.sum()]).to(outputs)

    def _excess(self, sums: Tensor) -> Tensor:
        """(missed, all) → rate minus its bound; 0 minus the bound for a batch without the group."""
        return sums[:1] / sums[1:].clamp(min=1) - self.rate
