"""Simultaneous upper bounds for several quantities, by Holm's step-down procedure."""

from collections.abc import Sequence

from torch_powalm.certification.quantity import Quantity


def holm_bounds(quantities: Sequence[Quantity], alpha: float) -> tuple[list[float], float]:
    """Return bounds that all hold with probability at least 1 − alpha, and the last level.

    With m quantities left, each is bounded with error α/m. Those whose bound is at most what is
    asked for are settled and leave; this repeats until none leaves (Holm 1979). Bounds that fit to
    this (Guilbaud 2008; Strassburger and Bretz 2008):

        settled, some left     what is asked for, which is all that is shown
        left                   the bound at the last level α/m
        settled, none left     the bound at the first level, α/(number of all quantities)

    So a bound is at most what is asked for exactly if the quantity is settled.
    """
    if not quantities:
        return [], alpha
    asked, first_level = [q.asked for q in quantities], alpha / len(quantities)
    first = now = [q.upper(first_level) for q in quantities]
    left = [i for i, bound in enumerate(first) if not bound <= asked[i]]
    settled = len(quantities) - len(left)
    while left and settled:
        now = [
            q.upper(alpha / len(left)) if i in left else asked[i] for i, q in enumerate(quantities)
        ]
        still = [i for i in left if not now[i] <= asked[i]]
        left, settled = still, len(left) - len(still)
    if left:
        return now, alpha / len(left)
    return [min(f, a) for f, a in zip(first, asked, strict=True)], first_level
