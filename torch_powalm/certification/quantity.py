"""Quantity: a number that a certificate bounds from above, and what margins need to know of it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch_powalm.certification.betting_bound import enough_samples, upper_mean
from torch_powalm.certification.binomial_bounds import Counts, RateFunction
from torch_powalm.certification.optional_scipy import load

_MOST_SAMPLES = 10**12  # more would be enough, but that is no help
_HALVINGS = 14  # of the search for an allowance


@dataclass(frozen=True)
class Quantity:
    """One entry of a block.

    Args:
        estimate: its value on the held-out data.
        asked: the largest value allowed.
        samples: number of held-out samples it depends on.
        upper: maps an error probability to an upper bound.
        enough: maps an error probability to a sample size that would bring the bound below
            `asked` if the estimate stayed the same; inf if none would.
        out_of_reach: whether the bound would be above `asked` for every outcome of so few samples.
        allowance: maps (error, miss, ratio) to the distance below `asked` at which an estimate
            from these data makes a bound from `ratio` times as many new samples hold, with
            probability about 1 − miss.
    """

    estimate: float
    asked: float
    samples: int
    upper: Callable[[float], float]
    enough: Callable[[float], float]
    out_of_reach: Callable[[float], bool]
    allowance: Callable[[float, float, float], float]


class RateQuantity:
    """A function of rates, with the methods behind a `Quantity`.

    Args:
        bound: upper bound of the function, from counts and an error probability.
        fn: the function, monotone in each rate.
        signs: 1 where it rises with a rate, −1 where it falls, 0 where it does not depend on it.
        groups: the counts behind each rate.
        asked: the largest value allowed.
    """

    def __init__(
        self,
        bound: Callable[..., float],
        fn: RateFunction,
        signs: Sequence[int],
        groups: list[Counts],
        asked: float,
    ) -> None:
        np = load("numpy")
        self.bound, self.fn, self.signs = bound, fn, signs
        self.groups, self.asked = groups, asked
        self.rates = np.array([k / n for k, n in groups])
        toward = zip(signs, self.rates, strict=True)
        self.best, self.worst = np.array(
            [((1 - s) / 2, (1 + s) / 2) if s else (p, p) for s, p in toward]
        ).T
        self.estimate = float(fn(self.rates))
        self.samples = int(sum(g.trials for g, s in zip(groups, signs, strict=True) if s))

    def quantity(self) -> Quantity:
        """Return the quantity."""
        numbers = self.estimate, self.asked, self.samples
        return Quantity(*numbers, self.upper, self.enough, self.out_of_reach, self.allowance)

    def upper(self, alpha: float) -> float:
        """Return the upper bound."""
        return max(self.estimate, self.bound(self.fn, self.groups, self.signs, alpha))

    def out_of_reach(self, alpha: float) -> bool:
        """Whether not even the best outcome of so many samples would do."""
        return self._at(self.best, 1.0, alpha) > self.asked

    def enough(self, alpha: float) -> float:
        """Return how many samples would be enough, at these rates or else at the best ones."""
        hoped = self.rates if self.estimate < self.asked else self.best
        if not float(self.fn(hoped)) < self.asked or not any(self.signs):
            return math.inf
        low, high = 0.0, 1.0
        while self._at(hoped, high, alpha) > self.asked:
            low, high = high, 2 * high
            if high * self.samples > _MOST_SAMPLES:
                return math.inf
        while math.ceil(high * self.samples) - math.ceil(low * self.samples) > 1:
            middle = (low + high) / 2
            over = self._at(hoped, middle, alpha) > self.asked
            low, high = (middle, high) if over else (low, middle)
        return math.ceil(high * self.samples)

    def allowance(self, alpha: float, miss: float, ratio: float) -> float:
        """Return how far below `asked` the estimate must be.

        A new estimate differs from this one by the noise of both, as one from 1/(1/n + 1/n')
        samples does from the truth, and the bound of the certificate is above the new estimate by
        its width. Both depend on the rates, so the rates are moved toward their best or worst
        values until the sum is at `asked`.
        """

        def value_and_width(t: float) -> tuple[float, float]:
            rates = self.rates + abs(t) * ((self.best if t > 0 else self.worst) - self.rates)
            value = float(self.fn(rates))
            bounds = (
                self._at(rates, ratio, alpha, whole=False),
                self._at(rates, ratio / (1 + ratio), miss, whole=False),
            )
            return value, sum(max(b - value, 0.0) for b in bounds)

        low, high = -1.0, 1.0
        if not sum(value_and_width(high)) <= self.asked:
            width = value_and_width(0.0)[1]
            return width if math.isfinite(width) else 0.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            fits = sum(value_and_width(middle)) <= self.asked
            low, high = (low, middle) if fits else (middle, high)
        return self.asked - value_and_width(high)[0]

    def _at(self, rates: Any, factor: float, alpha: float, whole: bool = True) -> float:
        """Return the bound for other rates and `factor` times as many samples."""
        counts = []
        for p, sign, group in zip(rates, self.signs, self.groups, strict=True):
            n = math.ceil(factor * group.trials) if whole else factor * group.trials
            counts.append(Counts(_round(p * n, sign) if whole else p * n, n))
        return self.bound(self.fn, counts, self.signs, alpha)


def _round(successes: float, sign: int) -> int:
    """Return a whole number of successes, on the unfavorable side."""
    near = round(successes)
    if abs(successes - near) < 1e-9 * max(1.0, near):
        return near
    return math.ceil(successes) if sign > 0 else math.floor(successes)


def mean_quantity(x: Any, low: float, high: float, asked: float) -> Quantity:
    """Return the quantity of a mean of values in [low, high]."""
    np, special = load("numpy"), load("special")
    estimate = float(x.mean())

    def enough(alpha: float) -> float:
        if not estimate < asked:
            return math.inf
        return math.ceil(enough_samples(x, low, high, alpha, asked - estimate))

    def out_of_reach(alpha: float) -> bool:
        return upper_mean(0 * x + low, low, high, alpha) > asked

    def upper(alpha: float) -> float:
        return upper_mean(x, low, high, alpha)

    def allowance(alpha: float, miss: float, ratio: float) -> float:
        width = (upper(alpha) - estimate) / math.sqrt(ratio)
        noise = float(np.std(x)) * math.sqrt((1 + 1 / ratio) / len(x))
        return width - float(special.ndtri(miss)) * noise

    return Quantity(estimate, asked, len(x), upper, enough, out_of_reach, allowance)
