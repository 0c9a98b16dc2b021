"""Reading what `measure` returns over all batches of held-out data."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_powalm.certification.binomial_bounds import Counts
from torch_powalm.training.block import Block, tally

Pairs = Sequence[tuple[int, int]]


def statistics(block: Block, batches: Sequence[Any], pairs: Pairs | None) -> list[Counts]:
    """Return successes and trials of each rate from the summed statistics of a block."""
    sums = [tally(block, value, 1.0).total.detach().cpu().double() for value in batches]
    total = torch.stack(sums).sum(0)
    check_finite(block, total)
    found = []
    for group, (k, n) in enumerate(default_pairs(block, len(total)) if pairs is None else pairs):
        if not (-len(total) <= min(k, n) and max(k, n) < len(total)):
            raise ValueError(
                f"pairs of {block.name!r} must be positions in {len(total)} statistics, "
                f"got {(k, n)!r}"
            )
        found.append(_counts(block, group, float(total[k]), float(total[n])))
    return found


def default_pairs(block: Block, size: int) -> Pairs:
    """Return the positions of successes, then trials."""
    if size % 2:
        raise ValueError(
            f"statistics of {block.name!r} must be successes, then trials (or state pairs=), "
            f"got {size} entries"
        )
    return [(j, size // 2 + j) for j in range(size // 2)]


def shares(block: Block, batches: Sequence[Any], bound: float) -> list[Counts]:
    """Return successes and trials of each entry from zeros and ones or from (value, count)."""
    if isinstance(batches[0], tuple):
        sums = [tally(block, value, 1.0) for value in batches]
        trials = torch.stack([torch.as_tensor(t.weight).cpu().double() for t in sums]).sum(0)
        total = torch.stack([t.total.detach().cpu().double() for t in sums]).sum(0)
        check_finite(block, total)
        pairs = enumerate(zip((total + bound * trials).tolist(), trials.tolist(), strict=True))
        return [_counts(block, entry, k, n) for entry, (k, n) in pairs]
    found = []
    for entry, values in enumerate(per_entry(block, batches)):
        wrong = values[(values != 0) & (values != 1)]
        if len(wrong):
            raise ValueError(f"values of {block.name!r} must be 0 or 1, got {float(wrong[0]):g}")
        found.append(_counts(block, entry, float(values.sum()), len(values)))
    return found


def per_entry(block: Block, batches: Sequence[Any]) -> list[Tensor]:
    """Return the values of all samples for each entry of a block."""
    size = block.size or 0
    columns: list[list[Tensor]] = [[] for _ in range(size)]
    for value in batches:
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, Tensor) and part.dim() == 1 for part in parts):
            raise TypeError(
                f"values of {block.name!r} must be a vector with one value per sample, or a list "
                f"of {size} such vectors, got {_shape(value)}"
            )
        if len(parts) != size:
            raise ValueError(
                f"values of {block.name!r} must be {size} vectors of samples, got {len(parts)}"
            )
        for column, part in zip(columns, parts, strict=True):
            column.append(part.detach().cpu().double())
    joined = [torch.cat(column) for column in columns]
    for entry, values in enumerate(joined):
        if not len(values):
            raise ValueError(f"group {entry} of {block.name!r} must have samples, got none")
        check_finite(block, values)
    return joined


def check_finite(block: Block, values: Tensor) -> None:
    """Raise if a value is nan or infinite."""
    if not bool(values.isfinite().all()):
        got = float(values[~values.isfinite()][0])
        raise ValueError(f"values of {block.name!r} must be finite on held-out data, got {got}")


def _counts(block: Block, group: int, successes: float, trials: float) -> Counts:
    if trials == 0:
        raise ValueError(f"group {group} of {block.name!r} must have samples, got none")
    # (value, count) in single precision is off a whole number by rounding.
    whole = abs(successes - round(successes)) <= 1e-3 + 1e-6 * trials
    if trials != round(trials) or not whole or not 0 <= round(successes) <= trials:
        raise ValueError(
            f"counts of {block.name!r} must be whole numbers, 0 ≤ successes ≤ trials (no smooth "
            f"proxy), got {successes:g} of {trials:g}"
        )
    return Counts(round(successes), round(trials))


def _shape(value: object) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
