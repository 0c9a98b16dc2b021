"""Units that the user gives: the scale of a block, and a penalty by block.

A scale s_b makes the penalty βφ(s r), so that s_b r_b is what is compared with other blocks. A
penalty β_b by block is a scale, too: with the largest one as β and

    s_b = (β_b / β)^(1/(ν+1))

a block that alone is violated has the penalty β_b φ(r_b). With ν = 1, or with one norm per block,
the penalties of several blocks add up to Σ β_b φ(r_b).
"""

import math
from collections.abc import Iterable, Mapping

from torch_powalm.training.block import Block

Penalty = float | Mapping[str, float] | None


def largest_penalty(beta_1: Penalty) -> float:
    """Return the one number that stands for β_1; 1 if it is to be measured."""
    if not isinstance(beta_1, Mapping):
        return 1.0 if beta_1 is None else beta_1
    if not beta_1:
        raise ValueError("beta_1 must have a number for every constraint, got none")
    for name, value in beta_1.items():
        if not hasattr(value, "__float__") or not 0 < value < math.inf:
            raise ValueError(f"beta_1 of {name!r} must be positive and finite, got {value!r}")
    return max(beta_1.values())


def penalty_factors(beta_1: Penalty, nu: float) -> dict[str, float] | None:
    """Return s_b by name; None if there is no penalty by block."""
    if not isinstance(beta_1, Mapping):
        return None
    beta = max(beta_1.values())
    return {name: (value / beta) ** (1 / (nu + 1)) for name, value in beta_1.items()}


def given_scales(blocks: Iterable[Block], factors: Mapping[str, float] | None) -> dict[str, float]:
    """Return the scales that need no measurement, by name."""
    scales = {block.name: block.scale for block in blocks}
    given = {name: scale for name, scale in scales.items() if scale is not None}
    if factors is None:
        return given
    for name in factors:
        if name not in scales:
            raise KeyError(f"beta_1 has no constraint {name!r}")
    for name in scales:
        if name not in factors:
            raise ValueError(
                f"beta_1 must have a number for every constraint, got none for {name!r}"
            )
    return {name: factor * given.get(name, 1.0) for name, factor in factors.items()}
