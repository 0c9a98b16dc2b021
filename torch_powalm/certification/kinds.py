"""Rates and Mean: what the values of a batch constraint are, and so how to bound them.

A kind reads what `measure` returns for each batch of held-out data, and afterwards has one
`Quantity` for each entry of the block: an estimate, an upper bound, and a sample size.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_powalm.certification.betting_bound import enough_samples, upper_mean
from torch_powalm.certification.binomial_bounds import Counts, disjoint_bound, union_bound
from torch_powalm.certification.optional_scipy import load
from torch_powalm.certification.rate_function import RateFunctions
from torch_powalm.certification.samples import per_entry, shares, statistics
from torch_powalm.training.block import Block

_MOST_SAMPLES = 10**12  # more would be enough, but that is no help


@dataclass(frozen=True)
class Quantity:
    """One entry of a block: a number that the certificate bounds from above.

    Args:
        estimate: its value on the held-out data.
        asked: the largest value allowed.
        samples: number of held-out samples it depends on.
        upper: maps an error probability to an upper bound.
        enough: maps an error probability to a sample size that would bring the bound below
            `asked` if the estimate stayed the same; inf if none would.
        out_of_reach: whether the bound would be above `asked` for every outcome of so few samples.
    """

    estimate: float
    asked: float
    samples: int
    upper: Callable[[float], float]
    enough: Callable[[float], float]
    out_of_reach: Callable[[float], bool]


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

    def collect(self, block: Block, batches: Sequence[Any]) -> list[list[Counts]]:
        """Return the counts of each group, for each entry."""
        if block.from_statistics is not None:
            return [statistics(block, batches, self.pairs)] * (block.size or 0)
        return [[counts] for counts in shares(block, batches, self.bound or 0.0)]

    def quantities(self, block: Block, batches: Sequence[Any], tolerance: float) -> list[Quantity]:
        """Return one quantity for each entry of an inequality, two for each one of an equality."""
        counts = self.collect(block, batches)
        functions = RateFunctions(block, counts[0], self.pairs, self.bound)
        found = []
        for entry, groups in enumerate(counts):
            for side in (1, -1) if not block.inequality else (1,):
                fn, signs = functions.side(entry, side)
                asked = tolerance + functions.asked(entry, side)
                found.append(self._quantity(fn, signs, groups, asked))
        return found

    def _quantity(
        self, fn: Any, signs: Sequence[int], groups: list[Counts], asked: float
    ) -> Quantity:
        np, bound = load("numpy"), disjoint_bound if self.disjoint else union_bound
        rates = np.array([k / n for k, n in groups])
        estimate = float(fn(rates))
        best = np.array([(1 - s) / 2 if s else p for s, p in zip(signs, rates, strict=True)])

        def at(rates: Any, factor: float, alpha: float) -> float:
            grown = [math.ceil(factor * g.trials) for g in groups]
            near = zip(rates, signs, grown, strict=True)
            return bound(fn, [Counts(_round(p * n, s), n) for p, s, n in near], signs, alpha)

        def out_of_reach(alpha: float) -> bool:
            return at(best, 1.0, alpha) > asked

        def enough(alpha: float) -> float:
            hoped = rates if estimate < asked else best
            if not float(fn(hoped)) < asked or not any(signs):
                return math.inf
            trials = sum(g.trials for g, s in zip(groups, signs, strict=True) if s)
            low, high = 0.0, 1.0
            while at(hoped, high, alpha) > asked:
                low, high = high, 2 * high
                if high * trials > _MOST_SAMPLES:
                    return math.inf
            while math.ceil(high * trials) - math.ceil(low * trials) > 1:
                middle = (low + high) / 2
                low, high = (middle, high) if at(hoped, middle, alpha) > asked else (low, middle)
            return math.ceil(high * trials)

        samples = sum(g.trials for g, s in zip(groups, signs, strict=True) if s)
        upper = lambda alpha: max(estimate, bound(fn, groups, signs, alpha))  # noqa: E731
        return Quantity(estimate, asked, samples, upper, enough, out_of_reach)


def _round(successes: float, sign: int) -> int:
    """Return a whole number of successes, on the unfavorable side."""
    near = round(successes)
    if abs(successes - near) < 1e-9 * max(1.0, near):
        return near
    return math.ceil(successes) if sign > 0 else math.floor(successes)


@dataclass(frozen=True)
class Mean:
    """A constraint on the mean of values in a known range, such as the loss of a class.

    `measure` returns one value per sample: a vector for a block of size 1, a list of vectors for
    a larger one, `[losses[target == c] for c in range(10)]`.

    Args:
        low: smallest possible value of a sample.
        high: largest possible value of a sample; a mean without one cannot be bounded.
        bound: largest mean allowed; the block's value is mean − bound.
    """

    low: float
    high: float
    bound: float = 0.0

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise ValueError(
                "low and high of Mean must be finite and in order (without a range, a mean has no "
                f"confidence bound), got {self.low!r} and {self.high!r}"
            )

    def quantities(self, block: Block, batches: Sequence[Any], tolerance: float) -> list[Quantity]:
        """Return one quantity for each entry of an inequality, two for each one of an equality."""
        if block.from_statistics is not None:
            raise ValueError(
                f"kind of {block.name!r} must be Rates for a block with from_statistics, got Mean"
            )
        found = []
        for values in per_entry(block, batches):
            smallest, largest = float(values.min()), float(values.max())
            if not (self.low <= smallest and largest <= self.high):
                got = smallest if smallest < self.low else largest
                where = f"[{self.low:g}, {self.high:g}]"
                raise ValueError(f"values of {block.name!r} must be in {where}, got {got:g}")
            for side in (1, -1) if not block.inequality else (1,):
                found.append(self._quantity(values, side, tolerance))
        return found

    def _quantity(self, values: Tensor, side: int, tolerance: float) -> Quantity:
        x = (side * values.to(torch.float64)).numpy()
        low, high = sorted((side * self.low, side * self.high))
        asked, estimate = tolerance + side * self.bound, float(x.mean())

        def enough(alpha: float) -> float:
            if not estimate < asked:
                return math.inf
            return math.ceil(enough_samples(x, low, high, alpha, asked - estimate))

        def out_of_reach(alpha: float) -> bool:
            return upper_mean(0 * x + low, low, high, alpha) > asked

        upper = lambda alpha: upper_mean(x, low, high, alpha)  # noqa: E731
        return Quantity(estimate, asked, len(x), upper, enough, out_of_reach)
