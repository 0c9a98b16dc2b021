"""ProxyValue: value of a batch constraint that has no gradient of its own, such as a count."""

from dataclasses import dataclass

from torch_powalm.training.block import BatchValue


@dataclass(frozen=True)
class ProxyValue:
    """A smooth proxy for the gradient, and the true value to enforce and report.

    `augment(loss, name=ProxyValue(proxy, strict))` is short for
    `augment(loss, name=proxy, strict={"name": strict})`.

    Args:
        proxy: differentiable value; gradients come from it.
        strict: true value; multipliers and reports use it.
    """

    proxy: BatchValue
    strict: BatchValue
