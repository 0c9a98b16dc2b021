"""Rates and Mean: what the values of a batch constraint are, and so how to bound them.

A kind reads what `measure` returns for each batch of held-out data, and afterwards has one
`Quantity` for each entry of the block: an estimate, an upper bound, and a sample size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_powalm.certification.binomial_bounds import Counts, disjoint_bound, union_bound
from torch_powalm.certification.quantity import Quantity, RateQuantity, mean_quantity
from torch_powalm.certification.rate_function import RateFunctions
from torch_powalm.certification.samples import per_entry, shares, statistics
from torch_powalm.training.block import Block


@dataclass(frozen=True)
class Rates:
    """A constraint on shares of samples: a rate, a difference or a ratio of rates.

    For a block with `from_statistics`, `measure` returns the sums that the block takes: by default
    the successes of each group, then the sizes of the groups. They must be counts of what is
    decided, not a smooth proxy. For another block, `measure` returns zeros and ones, one per
    sample (see `Mean`), or (value, count) as `augment` takes them.

    Args:
        bound: largest rate allowed, for a block without `from_statistics`, whose value is rate −
            bound. For one with it, only the unit of the table: by default its value at rates 0.
        pairs: positions of (successes, trials) in the statistics, one pair for each rate.
        disjoint: state that no sample is in two groups, as in demographic parity; this makes the
            bounds of differences and ratios tighter.
    """

    bound: float | None = None
    pairs: Sequence[tuple[int, int]] | None = None
    disjoint: bool = False

    def __post_init__(self) -> None:
        trials = [n for _, n in self.pairs or ()]
        if self.disjoint and len(set(trials)) < len(trials):
            raise ValueError(
                "pairs of disjoint groups must have a position of trials each, got "
                f"{list(self.pairs or ())!r}"
            )

    def collect(self, block: Block, batches: Sequence[Any]) -> list[list[Counts]]:
        """Return the counts of each group, for each entry."""
        if block.from_statistics is not None:
            return [statistics(block, batches, self.pairs)] * (block.size or 0)
        return [[counts] for counts in shares(block, batches, self.bound or 0.0)]

    def quantities(self, block: Block, batches: Sequence[Any], tolerance: float) -> list[Quantity]:
        """Return one quantity for each entry of an inequality, two for each one of an equality."""
        counts = self.collect(block, batches)
        if block.from_statistics is None and self.bound is None:
            raise ValueError(f"bound of {block.name!r} must be stated in Rates, got None")
        functions = RateFunctions(block, counts[0], self.pairs, self.bound)
        bound = disjoint_bound if self.disjoint else union_bound
        found = []
        for entry, groups in enumerate(counts):
            for side in (1, -1) if not block.inequality else (1,):
                fn, signs = functions.side(entry, side)
                asked = tolerance + functions.asked(entry, side)
                found.append(RateQuantity(bound, fn, signs, groups, asked).quantity())
        return found


@dataclass(frozen=True)
class Mean:
    """A constraint on the mean of values in a known range, such as the loss of a class.

    `measure` returns one value per sample: a vector for a block of size 1, a list of vectors for
    a larger one, `[losses[target == c] for c in range(10)]`.

    Args:
        low: smallest possible value of a sample.
        high: largest possible value of a sample; a mean without one cannot be bounded.
        bound: largest mean allowed, a number or one for each entry; the block's value is mean −
            bound.
    """

    low: float
    high: float
    bound: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise ValueError(
                "low and high of Mean must be finite and in order (without a range, a mean has no "
                f"confidence bound), got {self.low!r} and {self.high!r}"
            )

    def quantities(self, block: Block, batches: Sequence[Any], tolerance: float) -> list[Quantity]:
        """Return one quantity for each entry of an inequality, two for each one of an equality."""
        size = block.size or 0
        if block.from_statistics is not None:
            raise ValueError(
                f"kind of {block.name!r} must be Rates for a block with from_statistics, got Mean"
            )
        bounds = self.bound if isinstance(self.bound, Sequence) else [self.bound] * size
        if len(bounds) != size:
            raise ValueError(f"bound of {block.name!r} must have {size} entries, got {len(bounds)}")
        found = []
        for values, bound in zip(per_entry(block, batches), bounds, strict=True):
            smallest, largest = float(values.min()), float(values.max())
            if not (self.low <= smallest and largest <= self.high):
                got = smallest if smallest < self.low else largest
                where = f"[{self.low:g}, {self.high:g}]"
                raise ValueError(f"values of {block.name!r} must be in {where}, got {got:g}")
            for side in (1, -1) if not block.inequality else (1,):
                low, high = sorted((side * self.low, side * self.high))
                x = (side * values.to(torch.float64)).numpy()
                found.append(mean_quantity(x, low, high, tolerance + side * bound))
        return found
