"""Constraints of batches as the zoo has them, written by hand for one form of the batch.

A twin registers a block named "block" and returns a function of inputs, outputs, labels and groups
that gives what `augment` takes, or None for a function of the parameters.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from torch_powalm import ConstraintRegistry, ProxyValue

Call = Callable[[Tensor, Tensor, Tensor, Tensor], Any]  # inputs, outputs, labels, groups
Twin = Callable[[ConstraintRegistry, nn.Module], Call | None]
B = "block"


def _rate(hits: Any, rule: Any, size: int) -> Twin:
    """Sums of hits(p, y, g) with smooth and with true decisions."""

    def register(c: ConstraintRegistry, model: nn.Module) -> Call:
        c.inequality(B, size=size, from_statistics=rule)

        def call(x: Tensor, z: Tensor, y: Tensor, g: Tensor) -> ProxyValue:
            z, y = z[:, 0], y.to(z)
            masks = torch.stack([1.0 - g, 1.0 * g])
            hard = (z.detach() > 0).to(z)
            return ProxyValue(hits(torch.sigmoid(8 * z), y, masks), hits(hard, y, masks))

        return call

    return register


def _one(s: Tensor) -> Tensor:
    return s[:1] / s[1:] - 0.1


def _gap(s: Tensor) -> Tensor:
    r = s[:2] / s[2:]
    d = r[:1] - r[1:]
    return torch.cat([d, -d]) - 0.02


def _odds(s: Tensor) -> Tensor:
    r = (s[:4] / s[4:]).view(2, 2)
    d = r[:, :1] - r[:, 1:]
    return torch.cat([d, -d], 1).reshape(-1) - 0.02


RATES = {
    "false_negative_rate": _rate(
        lambda p, y, m: torch.stack([((1 - p) * y).sum(), y.sum()]), _one, 1
    ),
    "false_positive_rate": _rate(
        lambda p, y, m: torch.stack([(p * (1 - y)).sum(), (1 - y).sum()]), _one, 1
    ),
    "precision": _rate(
        lambda p, y, m: torch.stack([(p * y).sum(), p.sum()]), lambda s: 0.5 - s[:1] / s[1:], 1
    ),
    "coverage": _rate(
        lambda p, y, m: torch.stack([p.sum(), p.new_tensor(float(len(p)))]),
        lambda s: torch.cat([0.3 - s[:1] / s[1:], s[:1] / s[1:] - 0.4]),
        2,
    ),
    "demographic_parity": _rate(lambda p, y, m: torch.cat([m @ p, m.sum(1)]), _gap, 2),
    "equal_opportunity": _rate(lambda p, y, m: torch.cat([m @ (p * y), m @ y]), _gap, 2),
    "equalized_odds": _rate(
        lambda p, y, m: torch.cat([m @ (p * y), m @ (p * (1 - y)), m @ y, m @ (1 - y)]), _odds, 4
    ),
}


def _losses(c: ConstraintRegistry, size: int, bound: float, measure: Any, **options: Any) -> Call:
    c.inequality(B, size=size, **options)
    return lambda x, z, y, g: measure(z[:, 0].square(), y, g)


def _means(losses: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    members = one_hot(groups, 2).T.to(losses)
    count = members.sum(1)
    return members @ losses / count.clamp(min=1) - 0.5, count


def _worst(losses: Tensor, groups: Tensor) -> Tensor:
    members = one_hot(groups, 2).T.to(losses)
    return torch.cat([members @ losses, members.sum(1)])


def _each(losses: Tensor) -> tuple[Tensor, Tensor]:
    count = losses.new_zeros(2048)
    count[: len(losses)] = 1.0
    return torch.cat([losses, losses.new_zeros(2048 - len(losses))]) - 0.5, count


def _quantile(losses: Tensor) -> ProxyValue:
    count = losses.new_tensor(float(len(losses)))
    above = (losses.detach() > 0.5).to(losses).sum()
    smooth = torch.sigmoid(8 * (losses / 0.5 - 1)).sum()
    return ProxyValue(torch.stack([smooth, count]), torch.stack([above, count]))


LOSSES: dict[str, Twin] = {
    "class_loss": lambda c, m: _losses(c, 2, 0.5, lambda v, y, g: _means(v, y)),
    "group_loss": lambda c, m: _losses(c, 2, 0.5, lambda v, y, g: _means(v, g)),
    "worst_group_loss": lambda c, m: _losses(
        *(c, 1, 0.5, lambda v, y, g: _worst(v, g)),
        from_statistics=lambda s: (s[:2] / s[2:]).max().reshape(1) - 0.5,
    ),
    "sample_loss": lambda c, m: _losses(c, 2048, 0.5, lambda v, y, g: _each(v)),
    "loss_quantile": lambda c, m: _losses(
        *(c, 1, 0.5, lambda v, y, g: _quantile(v)), from_statistics=lambda s: s[:1] / s[1:] - 0.1
    ),
}


def _near(forward: bool) -> Twin:
    def register(c: ConstraintRegistry, m: Any) -> Call:
        c.inequality(B, size=1)

        def call(x: Tensor, z: Tensor, y: Tensor, g: Tensor) -> Any:
            with torch.no_grad():
                q = m.reference(x).log_softmax(-1)
            p = z.log_softmax(-1)
            each = p.exp() * (p - q) if forward else q.exp() * (q - p)
            return each.sum(-1).mean().reshape(1) - 0.1, z.new_tensor([float(len(z))])

        return call

    return register


def _distance(c: ConstraintRegistry, m: Any) -> Call:
    c.inequality(B, size=1, from_statistics=lambda s: (s[:1] / s[1:] + 1e-12).sqrt() - 0.1)

    def call(x: Tensor, z: Tensor, y: Tensor, g: Tensor) -> Tensor:
        with torch.no_grad():
            goal = m.reference(x)
        return torch.stack([(z - goal).square().sum(), goal.square().sum()])

    return call


FIDELITY: dict[str, Twin] = {
    "target_kl": _near(True),
    "forgetting": _near(False),
    "output_distance": _distance,
    "feature_distance": _distance,
}
