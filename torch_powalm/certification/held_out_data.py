"""Checks of held-out data: no sample is used twice."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    StackDataset,
    Subset,
    TensorDataset,
)
from torch.utils.data.distributed import DistributedSampler
from torch.utils.data.sampler import RandomSampler, WeightedRandomSampler

Key = tuple[int, int]  # a data source and a position in it, or an address in memory and -1


def check_apart(name: str, loader: Any, others: Iterable[tuple[str, Any]]) -> None:
    """Raise if a loader yields samples of one of the other loaders.

    Samples are the same if they are the same rows of the same dataset or tensor, also inside of
    subsets, transforms and wrappers with one dataset or loader. Equal copies of data are not
    noticed, and neither is an overlap of iterables that are not loaders or lists.
    """
    own = None
    for other_name, other in others:
        own = set(sample_keys(loader)) if own is None else own
        common = len(own.intersection(sample_keys(other)))
        if other is loader or common:
            got = "the same loader" if other is loader else f"{common} samples in common"
            raise ValueError(f"{name} must have no samples of {other_name}, got {got}")


def check_once(name: str, loader: Any) -> None:
    """Raise if a loader draws a sample twice: bounds count independent samples."""
    sampler = sampler_of(loader)
    how = "with replacement" if getattr(sampler, "replacement", False) else ""
    if isinstance(sampler, WeightedRandomSampler) and not how:
        how = "that prefers some" if sampler.num_samples < len(sampler.weights) else ""
    if isinstance(sampler, RandomSampler | WeightedRandomSampler) and how:
        got = f"{type(sampler).__name__} {how}"
        raise ValueError(f"{name} must draw every sample once, got {got}")
    if isinstance(sampler, DistributedSampler):
        repeated = sampler.total_size - len(sampler.dataset)  # type: ignore[arg-type]
        if repeated > 0:
            raise ValueError(
                f"{name} must draw every sample once, got a DistributedSampler that repeats "
                f"{repeated} to fill the ranks (set drop_last=True)"
            )
    keys = sample_keys(loader)
    if len(keys) > len(set(keys)):
        got = f"{len(keys) - len(set(keys))} repeated samples"
        raise ValueError(f"{name} must draw every sample once, got {got}")


def sample_keys(loader: Any) -> list[Key]:
    """Return what identifies the samples of a loader; empty if that is not known."""
    loader = _inner(loader, DataLoader)
    dataset: Any = getattr(loader, "dataset", None)
    if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        return _dataset_keys(dataset, _positions(loader, len(dataset)))
    if isinstance(loader, Dataset) and hasattr(loader, "__len__"):
        return _dataset_keys(loader, range(len(loader)))
    if isinstance(loader, Sequence):
        return [key for batch in loader for key in _tensor_keys(_first_tensor(batch))]
    return []


def sampler_of(loader: Any) -> Any:
    """Return what draws the positions, also if it is inside of a batch sampler."""
    loader = _inner(loader, DataLoader)
    sampler = getattr(loader, "batch_sampler", None) or getattr(loader, "sampler", None)
    while getattr(sampler, "sampler", None) is not None:
        sampler = sampler.sampler  # type: ignore[union-attr]
    return sampler


def _inner(wrapper: Any, kind: type) -> Any:
    """Return the one object of a kind inside of a wrapper, such as one that moves batches."""
    while not isinstance(wrapper, kind):
        found = [v for v in getattr(wrapper, "__dict__", {}).values() if isinstance(v, kind)]
        if len(found) != 1:
            break
        wrapper = found[0]
    return wrapper


def _positions(loader: Any, size: int) -> Iterable[Any]:
    """Return the positions that a loader draws; all of them if its sampler does not say."""
    sampler = sampler_of(loader)
    given = isinstance(sampler, Sequence | Tensor)
    positions = sampler if given else getattr(sampler, "indices", None)  # SubsetRandomSampler
    if not isinstance(positions, Sequence | Tensor):
        return range(size)
    if len(positions) and isinstance(positions[0], Sequence):  # a list of batches
        return [i for batch in positions for i in batch]
    return positions


def _dataset_keys(dataset: Any, positions: Iterable[Any]) -> list[Key]:
    while isinstance(dataset, Subset):
        indices = dataset.indices
        dataset, positions = dataset.dataset, [indices[int(i)] for i in positions]
    if isinstance(dataset, StackDataset):
        parts: Any = dataset.datasets
        first = next(iter(parts.values() if isinstance(parts, dict) else parts))
        return _dataset_keys(first, positions)
    if isinstance(dataset, ConcatDataset):
        joined: list[Any] = dataset.datasets
        rows = [key for part in joined for key in _dataset_keys(part, range(len(part)))]
    elif isinstance(dataset, TensorDataset):
        rows = _tensor_keys(dataset.tensors[0])
    elif isinstance(dataset, list | tuple):
        found = [_first_tensor(item) for item in dataset]
        rows = [(id(dataset), i) if t is None else (t.data_ptr(), -1) for i, t in enumerate(found)]
    else:
        inside: list[Any] = [
            v for v in getattr(dataset, "__dict__", {}).values() if isinstance(v, Dataset)
        ]
        if len(inside) == 1 and len(inside[0]) == len(dataset):  # a transform of another dataset
            return _dataset_keys(inside[0], positions)
        return [(id(dataset), int(i)) for i in positions]
    return [rows[int(i)] for i in positions]


def _tensor_keys(tensor: Tensor | None) -> list[Key]:
    """Identify the rows of a tensor by their place in memory."""
    if tensor is None or tensor.dim() == 0:
        return []
    step = max(1, tensor.stride(0)) * tensor.element_size()
    return [(tensor.data_ptr() + i * step, -1) for i in range(len(tensor))]


def _first_tensor(batch: Any) -> Tensor | None:
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return next((found for part in batch if (found := _first_tensor(part)) is not None), None)
    return batch if isinstance(batch, Tensor) else None
