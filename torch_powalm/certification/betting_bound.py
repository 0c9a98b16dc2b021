"""Confidence bound for the mean of values in a known range, by betting."""

import math
from collections.abc import Iterator
from typing import Any

from torch_powalm.certification.optional_scipy import load

_LARGEST_BET = 0.75  # share of the capital that may be lost in one round
_NEW, _LEFT = 0.3, 0.2  # stakes are set anew after this part of the past, or of what is left
_NEWTON_STEPS = 10
_ROUNDS = 60  # of the bisection


def upper_mean(values: Any, low: float, high: float, alpha: float) -> float:
    """Return a bound that the mean exceeds with probability at most alpha.

    To refute that the mean of x in [0, 1] is m or more, bet on small values:

        K_t(m) = Π_{s ≤ t} (1 + min(λ_s, ¾/(1 − m)) (m − x_s))

    The stake λ_s depends on x_1, …, x_{s−1} only. If the mean is at least m, K is a supermartingale
    that starts at 1, so it ever reaches 1/α with probability at most α (Ville). K rises with m, and
    the bound is the smallest m at which it reaches 1/α. Nothing but independence and the range is
    assumed, whatever the stakes are (Waudby-Smith and Ramdas 2024).

    Args:
        values: independent samples of x, as an array.
        low: smallest possible value.
        high: largest possible value.
        alpha: probability that the bound is wrong, in (0, 1).
    """
    np = load("numpy")
    x = (np.asarray(values, dtype=float) - low) / (high - low)
    # The order must not depend on the values, and files may be sorted.
    x = x[np.random.default_rng(0).permutation(len(x))]
    stakes, goal = _stakes(x, alpha), math.log(1 / alpha)

    def refuted(m: float) -> bool:
        bets = np.minimum(stakes, _LARGEST_BET / (1 - m)) if m < 1 else stakes
        return bool(np.cumsum(np.log1p(bets * (m - x))).max() >= goal)

    lower, upper = float(x.mean()), 1.0
    for _ in range(_ROUNDS):
        middle = (lower + upper) / 2
        lower, upper = (lower, middle) if refuted(middle) else (middle, upper)
    return low + (high - low) * upper


def _stakes(x: Any, alpha: float) -> Any:
    """Return a stake for every round, which depends on the rounds before it only.

    With τ rounds left and a deviation of σ, the chance to end at 1/α is largest with the stakes of
    a gambler who hedges an option that pays 1/α or nothing:

        λ = φ(u) / (Φ(u) σ √τ),   Φ(u) = αK

    K is taken at the m that the bound is about to be: where the option is worth as much as the mean
    so far promises, u + (m − mean) √τ/σ = 0. A target that is set anew like this makes bounds
    nearly as narrow as those of normal values (compare Voráček and Orabona 2025).
    """
    np, special = load("numpy"), load("special")
    n = len(x)
    sums, squares = (np.concatenate([[0.0], np.cumsum(v)]) for v in (x, x * x))
    stakes, m = np.empty(n), None
    for start, end in _stages(n):
        # As if there had been one more value, 0.5, with the largest possible variance.
        mean = (0.5 + sums[start]) / (start + 1)
        spread = squares[start] - 2 * mean * sums[start] + start * mean * mean
        variance = max((0.25 + spread) / (start + 1), 1e-12)
        scale = math.sqrt((n - start) / variance)
        m = mean - special.ndtri(alpha) / scale if m is None else m
        m = _promised(x[:start], stakes[:start], m, mean, scale, alpha)
        u = min(0.0, (mean - m) * scale)
        ratio = math.exp(-u * u / 2 - float(special.log_ndtr(u))) / math.sqrt(2 * math.pi)
        stakes[start:end] = ratio * scale / (n - start)
    return stakes


def _stages(n: int) -> Iterator[tuple[int, int]]:
    """Yield the rounds between two changes of the stake: short ones at the start and the end."""
    start = 0
    while start < n:
        length = max(1, min(int(_NEW * start), int(_LEFT * (n - start))))
        yield start, start + length
        start += length


def _promised(x: Any, stakes: Any, m: float, mean: float, scale: float, alpha: float) -> float:
    """Solve Φ⁻¹(α K(m)) + (m − mean) scale = 0 for m by Newton's method, about."""
    np, special = load("numpy"), load("special")
    for _ in range(_NEWTON_STEPS if len(x) else 0):
        m = min(max(m, mean), 1 - 1e-9)
        bets = np.minimum(stakes, _LARGEST_BET / (1 - m))
        growth = 1 + bets * (m - x)
        share = float(np.log(growth).sum()) + math.log(alpha)  # log αK
        if share > -1e-9:  # won already
            m = (m + mean) / 2
            continue
        u = float(special.ndtri_exp(share))
        slope = float((bets / growth).sum()) * math.exp(share + u * u / 2) * math.sqrt(2 * math.pi)
        step = (u + (m - mean) * scale) / (slope + scale)
        m -= step
        if abs(step) * scale < 0.03:
            break
    return m


def enough_samples(values: Any, low: float, high: float, alpha: float, gap: float) -> float:
    """Return about how many such samples would bring the bound within `gap` of their mean.

    From z σ/√n + (high − low) log(1/α)/(3n) = gap, the width for normal values and the second term
    of Bernstein's inequality, with a σ that is somewhat larger than that of the values.
    """
    np, special = load("numpy"), load("special")
    deviation = float(np.std(values)) + (high - low) / math.sqrt(len(values))
    a, b = -deviation * float(special.ndtri(alpha)), (high - low) * math.log(1 / alpha) / 3
    root = (a + math.sqrt(a * a + 4 * gap * b)) / (2 * gap)
    return root * root
