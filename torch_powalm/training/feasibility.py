"""When a model counts as feasible, and which of two models is better.

BestFeasible and the Lightning callback FeasibleCheckpoint share this order: feasible models come
first, by merit; then infeasible ones, by violation; models with a nan come last.
"""

import math
from collections.abc import Iterable, Mapping

Tolerance = float | Mapping[str, float]

_INFEASIBLE = 1e20  # times the violation: larger than any loss
_LEAST = 1e-10  # smaller violations count as this


def check_tolerance(tolerance: Tolerance, names: Iterable[str]) -> None:
    """Raise unless the tolerance is a number ≥ 0, or a mapping of known names to such numbers."""
    known = list(names)
    by_name = tolerance if isinstance(tolerance, Mapping) else {None: tolerance}
    for name, value in by_name.items():
        if name is not None and name not in known:
            raise KeyError(f"tolerance has no constraint {name!r}")
        what = "tolerance" if name is None else f"tolerance of {name!r}"
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < math.inf:
            raise ValueError(f"{what} must be nonnegative and finite, got {value!r}")


def tolerance_of(name: str, tolerance: Tolerance | None, default: float) -> float:
    """Return the tolerance of one block; the default if none is given for it."""
    if isinstance(tolerance, Mapping):
        return float(tolerance.get(name, default))
    return default if tolerance is None else float(tolerance)


def largest(values: Iterable[float]) -> float:
    """Return the largest violation: nan if one is nan, inf if there is none."""
    seen = list(values)
    return math.nan if any(map(math.isnan, seen)) else max(seen, default=math.inf)


def rank(merit: float, violation: float, tolerance: float) -> tuple[int, float]:
    """Return a key that sorts models, the best first.

    (0, merit)       where violation ≤ tolerance
    (1, violation)   elsewhere
    (2, ∞)           if one of them is nan or ∞
    """
    if not (merit < math.inf and violation < math.inf):
        return 2, math.inf
    return (0, merit) if violation <= tolerance else (1, violation)


def feasible_loss(loss: float, violation: float, tolerance: float) -> float:
    """Return the order of `rank` as one number.

    loss                  where violation ≤ tolerance
    10²⁰ · violation      elsewhere
    ∞                     if one of them is nan or ∞
    """
    tier, value = rank(loss, violation, tolerance)
    return _INFEASIBLE * max(value, _LEAST) if tier == 1 else value
