"""How often each bound is below the truth where that is easiest, and Holm's verdicts are wrong.

    python -m tests.certification.bounds_at_worst

Bounds of differences and ratios are checked exactly: all outcomes of two small groups, weighted by
scipy's binomial probabilities, for 144 pairs of true rates. Means and simultaneous verdicts are
simulated. No error may exceed 5 %; prints the tables of the report.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import stats

from experiments.certificates.certificates_report import interval
from torch_powalm.certification.betting_bound import upper_mean
from torch_powalm.certification.binomial_bounds import Counts, disjoint_bound, union_bound
from torch_powalm.certification.quantity import Quantity, RateQuantity, mean_quantity
from torch_powalm.certification.simultaneous import holm_bounds

ALPHA, HAIR = 0.05, 1e-9
RATES = (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99, 1.0)
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "difference": lambda r: r[..., 0] - r[..., 1],
    "ratio": lambda r: r[..., 0] / np.maximum(r[..., 1], 1e-12),
}
Drawn = Sequence[tuple[Quantity, float]]  # quantities and their true values


def worst_error(bound: Any, fn: Any, n: int, m: int) -> tuple[float, float, float]:
    """Largest probability that the bound is below the truth, and the rates where it is."""
    outcomes = [[Counts(k, n), Counts(j, m)] for k in range(n + 1) for j in range(m + 1)]
    bounds = np.array([bound(fn, groups, (1, -1), ALPHA) for groups in outcomes])
    found = []
    for p in RATES:
        for q in RATES:
            chances = np.outer(*(stats.binom.pmf(range(k + 1), k, r) for k, r in ((n, p), (m, q))))
            low = bounds < fn(np.array([p, q])) - HAIR
            found.append((float(chances.ravel()[low].sum()), p, q))
    return max(found)


SAMPLES: dict[str, tuple[Callable[[Any, int], Any], float]] = {
    "0 or 1, mean 0.5": (lambda rng, n: (rng.random(n) < 0.5) * 1.0, 0.5),
    "0 or 1, mean 0.05": (lambda rng, n: (rng.random(n) < 0.05) * 1.0, 0.05),
    "0 or 1, mean 0.95": (lambda rng, n: (rng.random(n) < 0.95) * 1.0, 0.95),
    "0.1, rarely 1": (lambda rng, n: np.where(rng.random(n) < 0.01, 1.0, 0.1), 0.109),
    "0.9, rarely 0": (lambda rng, n: np.where(rng.random(n) < 0.02, 0.0, 0.9), 0.882),
}


def at_truth(rng: Any, p: float, n: int) -> tuple[Quantity, float]:
    """A rate whose bound is a hair below its true value, so that "holds" is wrong."""
    return _rate(rng, p, n, p - HAIR), p


def _rate(rng: Any, p: float, n: int, asked: float) -> Quantity:
    counts = [Counts(int(rng.binomial(n, p)), n)]
    return RateQuantity(union_bound, lambda r: r[..., 0], [1], counts, asked).quantity()


def easy(rng: Any) -> tuple[Quantity, float]:
    """A rate far below its bound."""
    return _rate(rng, 0.02, 400, 0.3), 0.02


def mean_at_truth(rng: Any, n: int) -> tuple[Quantity, float]:
    """A mean whose bound is a hair below its true value."""
    return mean_quantity((rng.random(n) < 0.3) * 1.0, 0.0, 1.0, 0.3 - HAIR), 0.3


FAMILIES: dict[str, Callable[[Any], Drawn]] = {
    "5 rates at the truth": lambda rng: [at_truth(rng, 0.1, 200) for _ in range(5)],
    "3 at the truth, 4 easily met": lambda rng: [
        *(at_truth(rng, 0.1, 200) for _ in range(3)),
        *(easy(rng) for _ in range(4)),
    ],
    "1 at the truth, 9 easily met": lambda rng: [
        at_truth(rng, 0.3, 100),
        *(easy(rng) for _ in range(9)),
    ],
    "rates of 60 and of 7 samples and a mean": lambda rng: [
        at_truth(rng, 0.3, 60),
        at_truth(rng, 0.5, 7),
        mean_at_truth(rng, 60),
    ],
}


def main() -> None:
    """Print the tables."""
    print("| groups | of | bound | largest error | at rates |\n|" + " --- |" * 5)
    for n, m in ((3, 3), (5, 20), (20, 5), (30, 30)):
        for name, fn in FUNCTIONS.items():
            for title, bound in (("any groups", union_bound), ("disjoint", disjoint_bound)):
                error, p, q = worst_error(bound, fn, n, m)
                print(f"| {n}, {m} | {name} | {title} | {100 * error:.2f} % | {p:g}, {q:g} |")
    rng = np.random.default_rng(123)
    print("\n| values | samples | bound of the mean below the truth |\n|" + " --- |" * 3)
    for n, runs in ((5, 2000), (50, 2000), (400, 1000)):
        for name, (draw, truth) in SAMPLES.items():
            drawn = (draw(rng, n) for _ in range(runs))
            low = sum(upper_mean(x, 0.0, 1.0, ALPHA) < truth - HAIR for x in drawn)
            print(f"| {name} | {n} | {interval(low, runs)} |")
    print("\n| quantities | a wrong “holds” | a bound below the truth |\n|" + " --- |" * 3)
    for name, family in FAMILIES.items():
        wrong = low = 0
        for _ in range(2000):
            drawn = family(rng)
            pairs = list(zip(holm_bounds([q for q, _ in drawn], ALPHA)[0], drawn, strict=True))
            wrong += any(b <= q.asked < truth for b, (q, truth) in pairs)
            low += any(b < truth - 1e-6 for b, (_, truth) in pairs)
        print(f"| {name} | {interval(wrong, 2000)} | {interval(low, 2000)} |")


if __name__ == "__main__":
    main()
