"""What a report says about an indexed block: quantiles and the worst entries."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_powalm.functional import violation
from torch_powalm.result import Violation

QUANTILES = (0.5, 0.9, 0.99)
WORST = 10  # indices of the largest violations
UNSEEN = 1000  # at most so many entries are listed as never seen


def summary(value: Tensor, y: Tensor, inequality: bool) -> list[Tensor]:
    """Return what a report says about the block, still on the device."""
    seen = ~value.isnan()
    excess = violation(value, inequality).abs().masked_fill(~seen, -1.0)
    worst = excess.topk(min(WORST, len(value)))
    ranks = torch.tensor(QUANTILES, dtype=torch.float64).to(excess.device)
    # Entries that were never seen are sorted before all others.
    count = seen.sum()
    at = (len(value) - count + ((count - 1) * ranks).round().long()).clamp(0, len(value) - 1)
    quantiles = excess.sort().values[at]
    length = torch.linalg.vector_norm(excess.clamp(min=0))
    price = y.gather(0, y.abs().argmax().reshape(1))
    numbers = [length, torch.linalg.vector_norm(y), price, count]
    return [worst.values, worst.indices, quantiles, *numbers, seen[: 10 * UNSEEN]]


def described(read: Sequence[Tensor], size: int) -> Violation:
    """Return the violation from a `summary` on the host."""
    values, indices, quantiles, length, _, _, count, seen = read
    if not count:
        return Violation(math.nan, math.nan, tuple(range(min(size, UNSEEN))))
    unseen = (~seen).nonzero().flatten().tolist()[:UNSEEN]
    by_quantile = dict(zip(QUANTILES, quantiles.tolist(), strict=True))
    worst = tuple(i for i, v in zip(indices.tolist(), values.tolist(), strict=True) if v > 0)
    return Violation(float(values[0]), float(length), tuple(unseen), by_quantile, worst)
