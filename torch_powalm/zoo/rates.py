"""Rates of a classifier's decisions.

Multipliers and reports use the decisions themselves. Their gradient comes from the smooth proxy
sigmoid(sharpness · margin), where the margin is the logit of a binary classifier, or z_c − max of
the other logits. Each rate is a ratio of two sums over all samples since the last multiplier
update, in all processes; a group that is absent from a batch contributes nothing.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from torch_powalm.training.registry import ConstraintRegistry
from torch_powalm.zoo import decisions
from torch_powalm.zoo.decisions import Cases, RateMeasure
from torch_powalm.zoo.zoo_entry import Entry, check_number, group_sizes

Groups = int | Sequence[int]
Classes = int | Sequence[int]
Rule = Callable[[Tensor], Tensor]  # rates of shape (case, group) to the values of the constraint


def false_negative_rate(
    constraints: ConstraintRegistry, name: str, *, bound: float, **settings: Any
) -> Entry:
    """Bound the share of positives that the classifier misses, in every group.

        (positives decided negative) / positives ≤ bound

    Args:
        constraints: the registry.
        name: name of the block.
        bound: largest rate, in [0, 1].
        **settings: `groups`, the number of groups, or of values of each attribute, (2, 5), for
            their intersections; `positive`, the class that counts as positive, or several;
            `sharpness` of the proxy.

    Returns:
        An entry to call as `missed(logits, labels)` or `missed(logits, labels, group=group)`.
    """
    return _bounded(constraints, name, decisions.missed, bound, **settings)


def false_positive_rate(
    constraints: ConstraintRegistry, name: str, *, bound: float, **settings: Any
) -> Entry:
    """Bound the share of negatives decided positive; see `false_negative_rate`."""
    return _bounded(constraints, name, decisions.false_alarms, bound, **settings)


def precision(
    constraints: ConstraintRegistry, name: str, *, bound: float, **settings: Any
) -> Entry:
    """Require that a share of at least `bound` of the positive decisions is right.

    Settings and calls are those of `false_negative_rate`.
    """
    check_number(f"bound of {name!r}", bound, 0, 1)
    return _register(
        constraints, name, decisions.right, partial(_at_least, bound=bound), 1, **settings
    )


def coverage(
    constraints: ConstraintRegistry,
    name: str,
    *,
    low: float = 0.0,
    high: float = 1.0,
    **settings: Any,
) -> Entry:
    """Keep the share of positive decisions between `low` and `high`, in every group.

    Settings are those of `false_negative_rate`; the call needs no labels: `quota(logits)`.
    """
    check_number(f"low of {name!r}", low, 0, 1)
    check_number(f"high of {name!r}", high, low, 1)
    rule = partial(_between, low=low, high=high)
    return _register(constraints, name, decisions.decided, rule, 2, **settings)


def demographic_parity(
    constraints: ConstraintRegistry, name: str, *, bound: float, groups: Groups = 2, **settings: Any
) -> Entry:
    """Bound the difference between any two groups' shares of positive decisions.

        P(positive | group a) − P(positive | group b) ≤ bound   for all a, b

    Settings are those of `false_negative_rate`; the call is `parity(logits, group=group)`. Pass
    `positive=range(classes)` to bound the difference for every class.
    """
    return _gap(constraints, name, decisions.decided, bound, groups, **settings)


def equal_opportunity(
    constraints: ConstraintRegistry, name: str, *, bound: float, groups: Groups = 2, **settings: Any
) -> Entry:
    """Bound the difference between any two groups' true positive rates (Hardt et al. 2016).

    Settings are those of `false_negative_rate`; the call is `fair(logits, labels, group=group)`.
    """
    return _gap(constraints, name, decisions.found, bound, groups, **settings)


def equalized_odds(
    constraints: ConstraintRegistry, name: str, *, bound: float, groups: Groups = 2, **settings: Any
) -> Entry:
    """Bound the differences of true and of false positive rates (Hardt et al. 2016).

    Settings are those of `false_negative_rate`; the call is `fair(logits, labels, group=group)`.
    """
    return _gap(constraints, name, decisions.odds, bound, groups, **settings)


def _at_most(rates: Tensor, bound: float) -> Tensor:
    return rates - bound


def _at_least(rates: Tensor, bound: float) -> Tensor:
    return bound - rates


def _between(rates: Tensor, low: float, high: float) -> Tensor:
    return torch.stack([low - rates, rates - high])


def _differences(rates: Tensor, bound: float) -> Tensor:
    cases, groups = rates.shape
    square = (rates - bound).unsqueeze(2) - rates.unsqueeze(1)
    # Without its last entry, a square in rows of one more has its diagonal in the first column.
    rows = square.reshape(cases, -1)[:, :-1].view(cases, groups - 1, groups + 1)
    return rows[:, :, 1:].reshape(cases, -1)


def _from_statistics(statistics: Tensor, rule: Rule, groups: int) -> Tensor:
    hits, cases = statistics.chunk(2)
    return rule((hits / cases).view(-1, groups)).reshape(-1)


def _bounded(
    constraints: ConstraintRegistry, name: str, cases: Cases, bound: float, **settings: Any
) -> Entry:
    check_number(f"bound of {name!r}", bound, 0, 1)
    return _register(constraints, name, cases, partial(_at_most, bound=bound), 1, **settings)


def _gap(
    constraints: ConstraintRegistry,
    name: str,
    cases: Cases,
    bound: float,
    groups: Groups,
    **settings: Any,
) -> Entry:
    check_number(f"bound of {name!r}", bound, 0, 1)
    total = prod(group_sizes(name, groups))
    if total < 2:
        raise ValueError(f"groups of {name!r} must be at least 2, got {groups!r}")
    rule = partial(_differences, bound=bound)
    return _register(constraints, name, cases, rule, total - 1, groups=groups, **settings)


def _register(
    constraints: ConstraintRegistry,
    name: str,
    cases: Cases,
    rule: Rule,
    entries: int,  # per rate
    *,
    groups: Groups = 1,
    positive: Classes = 1,
    sharpness: float = 8.0,
) -> Entry:
    classes = (positive,) if isinstance(positive, int) else tuple(positive)
    if not classes or any(not isinstance(c, int) or c < 0 for c in classes):
        raise ValueError(f"positive of {name!r} must be one or several classes, got {positive!r}")
    if not (hasattr(sharpness, "__float__") and sharpness > 0):
        raise ValueError(f"sharpness of {name!r} must be positive, got {sharpness!r}")
    sizes = group_sizes(name, groups)
    rates = len(classes) * (2 if cases is decisions.odds else 1) * prod(sizes)
    read = partial(_from_statistics, rule=rule, groups=prod(sizes))
    constraints.inequality(name, size=entries * rates, from_statistics=read)
    return Entry(name, RateMeasure(name, cases, sizes, classes, sharpness))
