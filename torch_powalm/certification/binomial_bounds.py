"""Exact confidence bounds for functions of rates, from counts of independent samples.

All of them come from the exact one-sided bounds of Clopper and Pearson (1934), which scipy has as
quantiles of beta distributions. They hold for every sample size.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch_powalm.certification.optional_scipy import load

_CELLS = 400  # of the nuisance rate; each cell is bounded from outside, so more only sharpen
_BOX_SHARE = 0.1  # of the error: bounds each of two rates alone

RateFunction = Callable[[Any], Any]  # rates in the last dimension of an array to values


class Counts(NamedTuple):
    """Successes and trials of a group; not whole where they are only supposed."""

    successes: float
    trials: float


def upper_rate(counts: Counts, alpha: Any) -> Any:
    """Return p with P(at most `successes` | p) = alpha, or 1."""
    special, (k, n) = load("special"), counts
    return special.betaincinv(k + 1, n - k, 1 - alpha) if k < n else 0 * alpha + 1.0


def lower_rate(counts: Counts, alpha: Any) -> Any:
    """Return p with P(at least `successes` | p) = alpha, or 0."""
    special, (k, n) = load("special"), counts
    return special.betaincinv(k, n - k + 1, alpha) if k > 0 else 0 * alpha


def extreme_rate(counts: Counts, sign: int, alpha: Any) -> Any:
    """Return the bound of a rate on the side where a function of this slope is largest."""
    return upper_rate(counts, alpha) if sign > 0 else lower_rate(counts, alpha)


def union_bound(
    fn: RateFunction, groups: Sequence[Counts], signs: Sequence[int], alpha: float
) -> float:
    """Return an upper bound of fn(rates); valid however the groups depend on each other.

    The error alpha is split over the rates that fn depends on. The split minimizes the sum of
    widths z(α_j)/√n_j, so it depends on sample sizes only, as it must.

    Args:
        fn: a function that is monotone in each rate.
        groups: the counts behind each rate.
        signs: 1 where fn rises with a rate, −1 where it falls, 0 where it does not depend on it.
        alpha: probability that the bound is wrong, in (0, 1).
    """
    used = [j for j, sign in enumerate(signs) if sign]
    parts = dict(zip(used, split(alpha, [groups[j].trials for j in used]), strict=True))
    rates = [
        extreme_rate(groups[j], sign, parts[j]) if sign else groups[j].successes / groups[j].trials
        for j, sign in enumerate(signs)
    ]
    return float(fn(load("numpy").array(rates)))


def split(alpha: float, trials: Sequence[float]) -> list[float]:
    """Return parts of alpha that minimize Σ z(α_j)/√n_j."""
    if len(trials) == 1:
        return [alpha]
    special, np = load("special"), load("numpy")
    scale = np.asarray(trials, dtype=float) ** -0.5

    def parts(z: float) -> Any:
        # The derivative of z(α) is −1/density, so density(z_j)/scale_j is the same for all j.
        return special.ndtr(-np.sqrt(z**2 - 2 * np.log(scale / scale.max())))

    low, high = 0.0, 40.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if parts(middle).sum() > alpha else (low, middle)
    return [float(part) for part in parts(high)]


def disjoint_bound(
    fn: RateFunction, groups: Sequence[Counts], signs: Sequence[int], alpha: float
) -> float:
    """Return an upper bound of fn(p_1, p_2) for groups without common samples.

    Given the sizes of the groups, their counts are independent. At the true rates, the exact
    p-values P_1 and P_2 of the two groups are therefore independent, and so

        w_1 Φ⁻¹(P_1) + w_2 Φ⁻¹(P_2) ≥ Φ⁻¹(α'),     w_j ∝ 1/√n_j,   w_1² + w_2² = 1,   α' = 0.9 α

    holds with probability at least 1 − α' (Stouffer). The rest of α bounds each rate from both
    sides. The bound is the largest fn over all rates with both properties: for each P_1 = u of a
    grid, the least favorable p_2.
    """
    used = [j for j, sign in enumerate(signs) if sign]
    if len(used) != 2:
        return union_bound(fn, groups, signs, alpha)
    special, np = load("special"), load("numpy")
    scale = [groups[j].trials ** -0.5 for j in used]
    w_1, w_2 = (s / (scale[0] ** 2 + scale[1] ** 2) ** 0.5 for s in scale)
    # In the cell u[i+1] ≤ P_1 ≤ u[i], p_1 is at most its value at u[i+1], and P_2 at least v[i].
    u = np.concatenate([[1.0], special.ndtr(np.linspace(6.0, -6.0, _CELLS)), [0.0]])
    threshold = special.ndtri((1 - _BOX_SHARE) * alpha)
    v = special.ndtr((threshold - w_1 * special.ndtri(u[:-1])) / w_2)
    rates, possible = np.zeros((len(v), len(groups))), np.ones(len(v), dtype=bool)
    for j, level in zip(used, (u[1:], v), strict=True):
        low, high = (bound(groups[j], _BOX_SHARE * alpha / 4) for bound in (lower_rate, upper_rate))
        extreme = extreme_rate(groups[j], signs[j], level)
        possible &= extreme >= low if signs[j] > 0 else extreme <= high
        rates[:, j] = np.clip(extreme, low, high)
    return float(np.max(fn(rates[possible])))
