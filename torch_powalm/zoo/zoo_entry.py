"""Entry: what a function of the zoo returns, and checks that its families share."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torch_powalm.training.block import BatchValue
from torch_powalm.training.distributed.sharded_tensors import full
from torch_powalm.training.proxy_value import ProxyValue

Weight = nn.Module | Callable[[], Tensor]


@dataclass(frozen=True)
class Entry:
    """A registered constraint.

    Call it with a batch and pass the result to `augment` under its name. A function of the
    parameters needs no value, and calling it raises.

    Args:
        name: name of the block.
        measure: maps a batch to what `augment` takes; None for a function of the parameters.
        exact: the exact value of the block where the training uses an estimate; None if its value
            is exact.
    """

    name: str
    measure: Callable[..., BatchValue | ProxyValue] | None = None
    exact: Callable[[], Tensor] | None = None

    def __call__(self, *batch: Any, **arguments: Any) -> BatchValue | ProxyValue:
        """Return the value of the block in a batch."""
        if self.measure is None:
            raise RuntimeError(
                f"constraint {self.name!r} is a function of the parameters; leave it out of augment"
            )
        return self.measure(*batch, **arguments)

    @torch.no_grad()
    def certified(self) -> Tensor:
        """Return the exact value of the block; it is met if the value is at most 0."""
        if self.exact is None:
            raise RuntimeError(
                f"constraint {self.name!r} has no separate exact value; see constraints.values()"
            )
        return self.exact()


def check_number(what: str, value: Any, low: float, high: float = math.inf) -> None:
    """Raise unless a number is in [low, high) or, for high = 1, in [low, 1]."""
    if not hasattr(value, "__float__") or not low <= float(value) <= high or math.isinf(value):
        upper = f"{high:g}]" if high < math.inf else "inf)"
        raise ValueError(f"{what} must be in [{low:g}, {upper}, got {value!r}")


def check_bound(name: str, bound: Any) -> None:
    """Raise unless a bound is a finite number."""
    if not hasattr(bound, "__float__") or not math.isfinite(bound):
        raise ValueError(f"bound of {name!r} must be a finite number, got {bound!r}")


def check_count(what: str, value: Any) -> None:
    """Raise unless a count is a positive integer."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{what} must be a positive integer, got {value!r}")


def indices(what: str, values: Any, count: int, samples: int) -> Tensor:
    """Return integers in [0, count), one per sample, also from one-hot rows; others raise."""
    if values is None:
        raise ValueError(f"{what} must be given, got none")
    if isinstance(values, Tensor) and count > 1 and values.shape == (samples, count):
        ones = (values == 1).sum(1)
        if not torch.equal(ones, torch.ones_like(ones)) or bool((values != 0).sum(1).gt(1).any()):
            raise ValueError(
                f"{what} must be one index or a one-hot row per sample, got other rows"
            )
        values = values.argmax(1) if samples else values[:, 0]
    if not isinstance(values, Tensor) or values.numel() != samples:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"{what} must be a tensor with {samples} entries, got {got}")
    found = values.detach().reshape(-1)
    whole = found.long()
    if found.is_floating_point() and not torch.equal(whole.to(found.dtype), found):
        raise ValueError(f"{what} must be whole numbers, got {float(found[whole != found][0]):g}")
    if samples:
        low, high = int(whole.min()), int(whole.max())
        if low < 0 or high >= count:
            raise ValueError(f"{what} must be in [0, {count}), got {low if low < 0 else high}")
    return whole


def membership(found: Tensor, count: int, like: Tensor) -> Tensor:
    """Return indicators of shape (count, samples)."""
    return (found == torch.arange(count, device=found.device).unsqueeze(1)).to(like)


def group_index(what: str, group: Any, sizes: Sequence[int], samples: int) -> Tensor:
    """Return the index of each sample's group; attributes of intersections are combined."""
    if len(sizes) == 1:
        return indices(what, group, sizes[0], samples)
    parts = list(group.unbind(1)) if isinstance(group, Tensor) and group.dim() == 2 else group
    if not isinstance(parts, Sequence) or len(parts) != len(sizes):
        raise ValueError(f"{what} must have {len(sizes)} attributes per sample, got another number")
    combined = torch.zeros(samples, dtype=torch.long)
    for i, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        found = indices(f"attribute {i} of {what}", part, size, samples)
        combined = combined.to(found.device) * size + found
    return combined


def group_sizes(name: str, groups: int | Sequence[int]) -> tuple[int, ...]:
    """Return the number of values of each attribute."""
    sizes = (groups,) if isinstance(groups, int) else tuple(groups)
    if not sizes:
        raise ValueError(f"groups of {name!r} must have at least one attribute, got none")
    for size in sizes:
        check_count(f"groups of {name!r}", size)
    return sizes


def per_sample(name: str, losses: Any) -> Tensor:
    """Return the losses as a vector; a mean loss raises."""
    if not isinstance(losses, Tensor) or losses.dim() != 1:
        got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(
            f'losses of {name!r} must have one entry per sample (reduction="none"), got {got}'
        )
    return losses.float() if losses.element_size() < 4 else losses


def weight_of(name: str, weight: Any, dim: int | None = 2) -> Callable[[], Tensor]:
    """Return a function that reads a weight: of a module, or by a function of the user."""
    if isinstance(weight, nn.Module):
        if not isinstance(getattr(weight, "weight", None), Tensor):
            raise TypeError(f"weight of {name!r} must be a module with a weight, got {weight!r}")
        module = weight

        def read() -> Tensor:
            return module.weight  # type: ignore[return-value]

    elif callable(weight) and not isinstance(weight, Tensor):
        read = weight
    else:
        raise TypeError(
            f"weight of {name!r} must be a module or a function that returns the tensor (a tensor "
            f"may be replaced when the model moves), got {type(weight).__name__}"
        )
    shape = tuple(read().shape)
    if dim is not None and len(shape) != dim:
        raise ValueError(f"weight of {name!r} must be a matrix, got shape {shape}")
    return lambda: full(read())


def square(name: str, weight: Weight) -> Callable[[], Tensor]:
    """Return a function that reads a square matrix."""
    read = weight_of(name, weight)
    shape = tuple(read().shape)
    if shape[0] != shape[1]:
        raise ValueError(f"weight of {name!r} must be square, got shape {shape}")
    return read
