"""Decisions of a classifier, and the sums over a batch that rates are made of."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from torch_powalm.training.proxy_value import ProxyValue
from torch_powalm.zoo.zoo_entry import group_index, indices, membership

# Maps decisions and labels, (class, sample) each, to hits and cases: a rate is hits / cases.
Cases = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def missed(p: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Positives decided negative, among positives."""
    return (1 - p) * y, y


def false_alarms(p: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Negatives decided positive, among negatives."""
    return p * (1 - y), 1 - y


def right(p: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Positives decided positive, among all decided positive."""
    return p * y, p


def decided(p: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Samples decided positive, among all samples."""
    return p, torch.ones_like(p)


def found(p: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Positives decided positive, among positives."""
    return p * y, y


def odds(p: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Samples decided positive, among positives, and among negatives."""
    return torch.cat([p * y, p * (1 - y)]), torch.cat([y, 1 - y])


@dataclass(frozen=True)
class RateMeasure:
    """Turns a batch into the sums of a rate: hits of every case and group, then their cases.

    Args:
        name: name of the block.
        cases: which decisions count as a hit, and among which samples.
        groups: number of values of each attribute.
        classes: classes that count as positive, one after the other.
        sharpness: of the proxy.
    """

    name: str
    cases: Cases
    groups: tuple[int, ...]
    classes: tuple[int, ...]
    sharpness: float

    def __call__(self, logits: Tensor, labels: Any = None, group: Any = None) -> ProxyValue:
        """Return the sums with smooth decisions, and with the decisions themselves.

        Args:
            logits: scores of shape (samples,), (samples, 1) or (samples, classes).
            labels: class of each sample, or one-hot rows; not needed for coverage and demographic
                parity.
            group: group of each sample, or the attributes whose intersections are the groups.
        """
        margins, classes = self._margins(logits)
        samples = margins.shape[1]
        truth = torch.zeros_like(margins).detach()
        if self.cases is not decided:
            found = indices(f"labels of {self.name!r}", labels, classes, samples)
            truth = (found == torch.tensor(self.classes).to(found).unsqueeze(1)).to(truth)
        total = prod(self.groups)
        if total == 1 and group is None:
            members = torch.ones_like(margins[:1]).detach()
        else:
            if group is None:
                raise ValueError(f"group of {self.name!r} must be passed as group=…, got none")
            index = group_index(f"group of {self.name!r}", group, self.groups, samples)
            members = membership(index, total, truth)
        hard = (margins.detach() > 0).to(truth)
        return ProxyValue(
            self._sums(torch.sigmoid(self.sharpness * margins), truth, members),
            self._sums(hard, truth, members),
        )

    def _sums(self, p: Tensor, truth: Tensor, members: Tensor) -> Tensor:
        hits, cases = self.cases(p, truth)
        return torch.cat([hits @ members.T, cases @ members.T]).reshape(-1)

    def _margins(self, logits: Any) -> tuple[Tensor, int]:
        """Return the margins of the positive classes, (class, sample), and the number of all."""
        name = self.name
        if not isinstance(logits, Tensor) or not logits.is_floating_point():
            got = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
            raise TypeError(
                f"logits of {name!r} must be scores (a decision has no gradient), got {got}"
            )
        scores = logits.float() if logits.element_size() < 4 else logits
        if scores.dim() not in (1, 2):
            raise ValueError(
                f"logits of {name!r} must have one row per sample, got shape {tuple(logits.shape)}"
            )
        classes = scores.shape[1] if scores.dim() == 2 and scores.shape[1] > 1 else 2
        if max(self.classes) >= classes:
            raise ValueError(
                f"positive of {name!r} must be in [0, {classes}), got {max(self.classes)}"
            )
        if scores.numel() == len(scores):  # one logit per sample
            flat = scores.reshape(-1)
            return torch.stack([flat if c else -flat for c in self.classes]), 2
        chosen = scores[:, list(self.classes)]
        if classes == 2:
            return (chosen - scores[:, [1 - c for c in self.classes]]).T, 2
        first, second = scores.topk(2, dim=1).values.unsqueeze(2).unbind(1)
        return (chosen - torch.where(chosen == first, second, first)).T, classes
