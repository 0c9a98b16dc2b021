"""Entries: the values of an indexed block in one batch, and their indices."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Entries(NamedTuple):
    """The entries of a block in one batch.

    Args:
        value: their values, detached or with a graph.
        indices: their indices in the block.
        first: which of the indices are the first of their kind; None if all are different.
    """

    value: Tensor
    indices: Tensor
    first: Tensor | None


def read_entries(name: str, size: int, given: Any, reads: bool) -> Entries:
    """Return the value and the index of a batch, or raise if they do not fit the block.

    An index that may not be read and is out of range makes its value nan, which leaves out the step
    and is told at the next update.

    Args:
        name: name of the block.
        size: number of its entries.
        given: what `augment` was given.
        reads: whether an index on the CPU may be read.
    """
    if not isinstance(given, tuple) or len(given) != 2:
        raise TypeError(f"constraint {name!r} must be (value, index), got {type(given).__name__}")
    value, index = given
    if not isinstance(value, Tensor) or not value.is_floating_point():
        got = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"constraint {name!r} must be a floating-point tensor, got {got}")
    if not isinstance(index, Tensor) or index.is_floating_point() or index.dtype == torch.bool:
        got = index.dtype if isinstance(index, Tensor) else type(index).__name__
        raise TypeError(f"index of {name!r} must be a tensor of integers, got {got}")
    value, index = value.reshape(-1), index.reshape(-1).long()
    if len(value) == 0:
        raise ValueError(f"constraint {name!r} must have at least one entry, got none")
    if len(value) != len(index):
        raise ValueError(f"index of {name!r} must have {len(value)} entries, got {len(index)}")
    value = value.float() if value.element_size() < 4 else value
    if not index.is_cpu or not reads:
        index = index.to(value.device, non_blocking=True)
        inside = (index >= 0) & (index < size)
        value, index = torch.where(inside, value, math.nan), index.clamp(0, size - 1)
        return Entries(value, index, distinct(index))
    indices = index.tolist()
    low, high, different = min(indices), max(indices), len(set(indices)) == len(indices)
    if low < 0 or high >= size:
        wrong = low if low < 0 else high
        raise ValueError(f"index of {name!r} must be in [0, {size}), got {wrong}")
    index = index.to(value.device, non_blocking=True)
    return Entries(value, index, None if different else distinct(index))


def distinct(indices: Tensor) -> Tensor:
    """Return which indices are the first of their kind."""
    index, order = indices.sort(stable=True)
    first = torch.cat([torch.ones_like(index[:1], dtype=torch.bool), index[1:] != index[:-1]])
    mask = torch.empty_like(first)
    mask[order] = first
    return mask


def agreeing(entries: Entries) -> Tensor:
    """Return values that are the same for equal indices, those of the first."""
    value = entries.value.detach()
    if entries.first is None:
        return value
    index, order = entries.indices.sort(stable=True)
    first = entries.first[order]
    position = torch.where(first, torch.arange(len(index), device=index.device), 0).cummax(0).values
    same = torch.empty_like(value)
    same[order] = value[order][position]
    return same


def masked(value: Tensor, first: Tensor | None, other: float = math.nan) -> Tensor:
    """Return values with another number in place of duplicates."""
    return value if first is None else torch.where(first, value, other)
