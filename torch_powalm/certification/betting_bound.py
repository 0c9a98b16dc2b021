"""Confidence bound for the mean of values in a known range, by betting."""

import math
from typing import Any

from torch_powalm.certification.optional_scipy import load

_LARGEST_BET = 0.5  # share of the capital that may be lost in one round
_ROUNDS = 60  # of the bisection


def upper_mean(values: Any, low: float, high: float, alpha: float) -> float:
    """Return a bound that the mean exceeds with probability at most alpha.

    Waudby-Smith and Ramdas (2024): to refute that the mean of x in [0, 1] is m or more, bet on
    small values, with stakes that follow the variance seen so far:

        K_t(m) = Π_{s ≤ t} (1 + λ_s (m − x_s))
        λ_s = min(√(2 log(1/α) / (n σ̂²_{s−1})), ½/(1 − m))

    If the mean is at least m, K is a supermartingale that starts at 1, so it ever reaches 1/α with
    probability at most α (Ville). The bound is the smallest m at which it does. Nothing but
    independence and the range is assumed, and the width follows the variance of the values.

    Args:
        values: independent samples of x, as an array.
        low: smallest possible value.
        high: largest possible value.
        alpha: probability that the bound is wrong, in (0, 1).
    """
    np = load("numpy")
    x = (np.asarray(values, dtype=float) - low) / (high - low)
    n = len(x)
    # The order must not depend on the values, and files may be sorted.
    x = x[np.random.default_rng(0).permutation(n)]
    count = np.arange(1, n + 1)
    mean = (0.5 + np.cumsum(x)) / (count + 1)
    variance = (0.25 + np.cumsum((x - mean) ** 2)) / (count + 1)
    previous = np.concatenate([[0.25], variance[:-1]])
    stakes = np.sqrt(2 * math.log(1 / alpha) / (n * previous))

    def refuted(m: float) -> bool:
        bets = np.minimum(stakes, _LARGEST_BET / (1 - m)) if m < 1 else stakes
        return bool(np.cumsum(np.log1p(bets * (m - x))).max() >= math.log(1 / alpha))

    lower, upper = float(x.mean()), 1.0
    for _ in range(_ROUNDS):
        middle = (lower + upper) / 2
        lower, upper = (lower, middle) if refuted(middle) else (middle, upper)
    return low + (high - low) * upper


def enough_samples(values: Any, low: float, high: float, alpha: float, gap: float) -> float:
    """Return about how many such samples would bring the bound within `gap` of their mean.

    From Bernstein's inequality, σ√(2 log(1/α)/n) + (high − low) log(1/α)/(3n) = gap, with a σ that
    is somewhat larger than that of the values.
    """
    np = load("numpy")
    log = math.log(1 / alpha)
    deviation = float(np.std(values)) + (high - low) / math.sqrt(len(values))
    a, b = deviation * math.sqrt(2 * log), (high - low) * log / 3
    root = (a + math.sqrt(a * a + 4 * gap * b)) / (2 * gap)
    return root * root
