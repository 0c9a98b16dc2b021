"""Bounds on losses: of classes, groups, single samples, and on a quantile of the loss.

Each entry is called with the losses of the samples of a batch (`reduction="none"`).
"""

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from torch_powalm.training.proxy_value import ProxyValue
from torch_powalm.training.registry import ConstraintRegistry
from torch_powalm.zoo.zoo_entry import (
    Entry,
    check_bound,
    check_count,
    check_number,
    group_index,
    group_sizes,
    indices,
    membership,
    per_sample,
)


def class_loss(constraints: ConstraintRegistry, name: str, *, classes: int, bound: float) -> Entry:
    """Bound the mean loss of every class.

        mean of the losses of class c ≤ bound   for all c

    Args:
        constraints: the registry.
        name: name of the block.
        classes: number of classes.
        bound: largest mean loss.

    Returns:
        An entry to call as `class_loss(losses, labels)`.
    """
    check_count(f"classes of {name!r}", classes)
    return _means(constraints, name, f"labels of {name!r}", (classes,), bound)


def group_loss(
    constraints: ConstraintRegistry, name: str, *, groups: int | Sequence[int], bound: float
) -> Entry:
    """Bound the mean loss of every group, or of every intersection of attributes.

    Args:
        constraints: the registry.
        name: name of the block.
        groups: number of groups, or of values of each attribute.
        bound: largest mean loss.

    Returns:
        An entry to call as `group_loss(losses, group)`.
    """
    return _means(constraints, name, f"group of {name!r}", group_sizes(name, groups), bound)


def worst_group_loss(
    constraints: ConstraintRegistry, name: str, *, groups: int | Sequence[int], bound: float
) -> Entry:
    """Bound the largest mean loss of any group by one multiplier (Sagawa et al. 2020).

    Arguments and call are those of `group_loss`, which has a multiplier for every group.
    """
    check_bound(name, bound)
    sizes = group_sizes(name, groups)
    read = partial(_largest, bound=float(bound))
    constraints.inequality(name, size=1, from_statistics=read)

    def measure(losses: Tensor, group: Any) -> Tensor:
        losses = per_sample(name, losses)
        index = group_index(f"group of {name!r}", group, sizes, len(losses))
        members = membership(index, prod(sizes), losses)
        return torch.cat([members @ losses, members.sum(1)])

    return Entry(name, measure)


def sample_loss(constraints: ConstraintRegistry, name: str, *, samples: int, bound: float) -> Entry:
    """Bound the loss of every single sample; each one has its own multiplier.

        loss of sample i ≤ bound   for all i

    Args:
        constraints: the registry.
        name: name of the block.
        samples: number of samples of the data set.
        bound: largest loss.

    Returns:
        An entry to call as `sample_loss(losses, index)` with the positions in the data set.
    """
    check_bound(name, bound)
    check_count(f"samples of {name!r}", samples)
    constraints.inequality(name, size=samples)

    def measure(losses: Tensor, index: Any) -> tuple[Tensor, Tensor]:
        losses = per_sample(name, losses)
        rows = indices(f"index of {name!r}", index, samples, len(losses))
        count = torch.bincount(rows, minlength=samples).to(losses)
        total = losses.new_zeros(samples).index_add(0, rows, losses)
        return total / count.clamp(min=1) - bound, count

    return Entry(name, measure)


def loss_quantile(
    constraints: ConstraintRegistry,
    name: str,
    *,
    quantile: float,
    bound: float,
    sharpness: float = 8.0,
) -> Entry:
    """Bound a quantile of the loss: few samples have a loss above the bound.

        share of samples with loss > bound  ≤  1 − quantile

    Multipliers and reports use the counts, the gradient comes from sigmoid(sharpness · (loss/bound
    − 1)).

    Args:
        constraints: the registry.
        name: name of the block.
        quantile: in (0, 1): 0.9 bounds the loss of nine samples in ten.
        bound: largest value of the quantile, > 0.
        sharpness: of the proxy.

    Returns:
        An entry to call as `quantile(losses)`.
    """
    check_bound(name, bound)
    if not bound > 0:
        raise ValueError(f"bound of {name!r} must be positive, got {bound!r}")
    check_number(f"quantile of {name!r}", quantile, 0, 1)
    if not sharpness > 0:
        raise ValueError(f"sharpness of {name!r} must be positive, got {sharpness!r}")
    constraints.inequality(name, size=1, from_statistics=partial(_share, allowed=1 - quantile))

    def measure(losses: Tensor) -> ProxyValue:
        losses = per_sample(name, losses)
        count = losses.new_tensor(float(len(losses)))
        smooth = torch.sigmoid(sharpness * (losses / bound - 1)).sum()
        above = (losses.detach() > bound).to(losses).sum()
        return ProxyValue(torch.stack([smooth, count]), torch.stack([above, count]))

    return Entry(name, measure)


def _means(
    constraints: ConstraintRegistry, name: str, what: str, sizes: tuple[int, ...], bound: float
) -> Entry:
    check_bound(name, bound)
    count = prod(sizes)
    constraints.inequality(name, size=count)

    def measure(losses: Tensor, group: Any) -> tuple[Tensor, Tensor]:
        losses = per_sample(name, losses)
        members = membership(group_index(what, group, sizes, len(losses)), count, losses)
        cases = members.sum(1)
        return members @ losses / cases.clamp(min=1) - bound, cases

    return Entry(name, measure)


def _largest(statistics: Tensor, bound: float) -> Tensor:
    total, cases = statistics.chunk(2)
    present = cases > 0
    means = total / torch.where(present, cases, 1.0)
    return torch.where(present, means, -torch.inf).max().reshape(1) - bound


def _share(statistics: Tensor, allowed: float) -> Tensor:
    return statistics[:1] / statistics[1:] - allowed
