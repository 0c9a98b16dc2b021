"""Block, a named constraint, and Tally, its running sums over batches.

A tally is a pair of sums that can be added over micro-batches, ranks and epochs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_powalm.checks.state_checks import check_list, check_number, check_tensor
from torch_powalm.functional import norm, violation
from torch_powalm.result import Violation

ConstraintFn = Callable[..., Tensor]
BatchValue = Tensor | tuple[Tensor, Tensor]
_FULL = frozenset((torch.float32, torch.float64))


@dataclass(frozen=True)
class Block:
    """One named constraint: A(x) = 0, or B(x) ≤ 0 when `inequality` is true.

    Args:
        name: name of the block.
        inequality: whether B(x) ≤ 0.
        fn: function of the parameters; None for a batch block.
        size: number of entries of a batch block.
        from_statistics: function of the summed statistics of a batch block.
        latest: whether the latest step stands for a batch block instead of an average.
        model: the argument of `fn`; None if it takes none.
        scale: factor of the values in the penalty; None if it is to be measured.
        indexed: whether a batch has a few of the entries, with their indices.
    """

    name: str
    inequality: bool
    fn: ConstraintFn | None
    size: int | None
    from_statistics: Callable[[Tensor], Tensor] | None
    latest: bool = False
    model: Any = None
    scale: float | None = None
    indexed: bool = False

    def evaluate(self, model: Any = None) -> Any:
        """Call the function, on another model if given; without a graph if grad is disabled.

        The function itself always runs with gradients enabled, because it may use
        `torch.autograd.grad`, as the residual of a differential equation does.
        """
        fn: Any = self.fn
        arguments = () if self.model is None else (self.model if model is None else model,)
        if torch.is_grad_enabled():
            return fn(*arguments)
        with torch.inference_mode(False), torch.enable_grad():
            value = fn(*arguments)
        return value.detach() if isinstance(value, Tensor) else value

    def flat(self, value: object, size: int | None, noun: str = "") -> Tensor:
        """Check the value and return it as a flat vector of at least single precision."""
        # Fast path: with many blocks, the checks below are measurable.
        if isinstance(value, Tensor) and value.dtype in _FULL and value.shape == (size,) and size:
            return value
        what = f"constraint {self.name!r}{noun}"
        if not isinstance(value, Tensor):
            raise TypeError(f"{what} must be a tensor, got {type(value).__name__}")
        if not value.is_floating_point():
            raise TypeError(f"{what} must be a floating-point tensor, got {value.dtype}")
        if value.numel() == 0:
            raise ValueError(f"{what} must have at least one entry, got shape {tuple(value.shape)}")
        if size is not None and value.numel() != size:
            raise ValueError(f"{what} must have {size} entries, got {value.numel()}")
        flat = value if value.dim() == 1 else value.reshape(-1)
        return flat.float() if flat.element_size() < 4 else flat

    def violation(self, value: Tensor, seen: Tensor | None = None) -> Violation:
        """Return the largest entry and the norm of |A(x)| or max(B(x), 0).

        Args:
            value: the value of the block.
            seen: which entries have been in a batch; None for all.
        """
        never_seen: tuple[int, ...] = ()
        if seen is not None:
            never_seen = tuple((~seen).nonzero().flatten().tolist())
            if len(never_seen) == len(value):
                return Violation(math.nan, math.nan, never_seen)
        excess = violation(value, self.inequality)
        return Violation(float(excess.abs().max()), norm(excess), never_seen)

    def __str__(self) -> str:
        kind = "inequality" if self.inequality else "equality"
        if self.fn is not None:
            return f"{self.name}: {kind}, function of the parameters"
        source = "statistics of the batch" if self.from_statistics else "the batch"
        source += " by index" if self.indexed else ""
        return f"{self.name}: {kind}, size {self.size}, from {source}"


class Tally(NamedTuple):
    """Sums of a batch block: its weighted values and their weights, or its additive statistics."""

    total: Tensor
    weight: Tensor | float

    def plus(self, other: "Tally") -> "Tally":
        """Add two tallies."""
        self.check_size(other)
        return Tally(self.total + other.total, self.weight + other.weight)

    def check_size(self, other: "Tally") -> None:
        """Raise if the other tally has statistics of another shape."""
        if self.total.shape != other.total.shape:
            raise ValueError(
                f"statistics must have {len(self.total)} entries as before, got {len(other.total)}"
            )

    def divided(self, parts: int) -> "Tally":
        """Return the average of equal parts."""
        return self if parts == 1 else Tally(self.total / parts, self.weight / parts)

    def snapshot(self) -> "Tally":
        """Return a detached copy."""
        weight = self.weight if isinstance(self.weight, float) else self.weight.clone()
        return Tally(self.total.detach().clone(), weight)

    def to(self, device: torch.device) -> "Tally":
        """Return the same sums on a device."""
        weight = self.weight if isinstance(self.weight, float) else self.weight.to(device)
        return Tally(self.total.to(device), weight)

    def value(self, block: Block) -> Tensor:
        """Return the constraint: a function of the statistics, or total / weight (0 if 0 / 0).

        An entry that is not finite although the statistics are (a rate without its group) is 0,
        without a gradient.
        """
        if block.from_statistics is not None:
            return _from_statistics(block, self.total)
        if isinstance(self.weight, float):
            return self.total if self.weight == 1.0 else self.total / self.weight
        return self.total / torch.where(self.weight > 0, self.weight, 1.0)

    @torch.no_grad()
    def present(self, block: Block) -> Tensor:
        """Return which entries of the block these sums determine."""
        if block.from_statistics is not None:
            return ~_absent(_read(block, self.total), self.total)
        if isinstance(self.weight, float):
            return torch.ones_like(self.total, dtype=torch.bool)
        return (self.weight > 0).expand_as(self.total)


def _read(block: Block, total: Tensor) -> Tensor:
    fn: Any = block.from_statistics
    return block.flat(fn(total), block.size, " from its statistics")


def _absent(value: Tensor, total: Tensor) -> Tensor:
    """Return which entries are not finite although all statistics are."""
    return ~value.isfinite() & total.isfinite().all()


def _from_statistics(block: Block, total: Tensor) -> Tensor:
    """Return the function of the statistics; absent entries are 0 and have no gradient.

    Where a rate is 0/0, its derivative is nan, which times 0 is nan. So the nan is removed from the
    gradient of the statistics, unless the gradient that arrived was not finite already.
    """
    if not total.requires_grad:
        value = _read(block, total)
        return torch.where(_absent(value, total), 0.0, value)
    total = total.view_as(total)  # the hook must not see other uses of the statistics
    value = _read(block, total)
    absent = _absent(value, total)
    value = torch.where(absent, 0.0, value)
    removable = absent.any()

    def arrive(grad: Tensor) -> None:
        nonlocal removable
        removable = absent.any() & grad.isfinite().all()

    def remove(grad: Tensor) -> Tensor:
        return torch.where(removable & ~grad.isfinite(), 0.0, grad)

    if value.requires_grad:
        if not torch.compiler.is_compiling():  # hooks of a graph cannot pass anything on
            value.register_hook(arrive)  # type: ignore[no-untyped-call]
        total.register_hook(remove)  # type: ignore[no-untyped-call]
    return value


def tally(block: Block, value: BatchValue, samples: float, deferred: bool = False) -> Tally:
    """Read the value of a block in one batch: a tensor, (tensor, count), or statistics.

    A count out of range raises; if `deferred`, it makes the value nan instead.
    """
    if block.from_statistics is not None:
        return Tally(block.flat(value, None, "'s statistics"), 1.0)
    if not isinstance(value, tuple):
        total = block.flat(value, block.size)
        return Tally(total if samples == 1.0 else total * samples, float(samples))
    if len(value) != 2:
        raise ValueError(
            f"constraint {block.name!r} must be a value or (value, count), got {len(value)} items"
        )
    total = block.flat(value[0], block.size)
    count = torch.as_tensor(value[1], dtype=total.dtype, device=total.device).detach().reshape(-1)
    what = f"count of {block.name!r}"
    if len(count) != len(total):
        raise ValueError(f"{what} must have {len(total)} entries, got {len(count)}")
    valid = (count >= 0) & count.isfinite()
    if deferred:
        count = torch.where(valid, count, torch.nan)
        return Tally(torch.where(count == 0, 0.0, total) * count, count.nan_to_num(nan=1.0))
    if not bool(valid.all()):
        raise ValueError(f"{what} must be nonnegative and finite, got {count.tolist()}")
    return Tally(torch.where(count > 0, total, 0.0) * count, count)


def checked_tally(value: Any, where: str, block: Block) -> Tally:
    """Return saved sums of a batch block; raise if they cannot be sums of this block."""
    total, weight = check_list(value, where, lambda item, place: item, 2)
    shapes: list[tuple[int, ...]] | None = None
    if block.from_statistics is None:
        shapes = [(block.size or 0,)]
    total = check_tensor(total, f"{where}[0]", shapes=shapes)
    if isinstance(weight, Tensor):
        shapes = [tuple(total.shape), (1,), ()]
        weight = check_tensor(weight, f"{where}[1]", shapes=shapes, low=0.0).to(total)
    else:
        weight = check_number(weight, f"{where}[1]", positive=True)
    tally = Tally(total, weight)
    try:
        tally.value(block)
    except Exception as error:  # the user's function of statistics may raise anything
        raise ValueError(f"{where}[0] must be statistics of {block.name!r}: {error}") from error
    return tally


def check_samples(samples: float) -> None:
    """Raise unless the weight of a batch is a positive number."""
    if not 0 < samples < math.inf:
        raise ValueError(f"samples must be positive and finite, got {samples!r}")
