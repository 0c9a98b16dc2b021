"""Checks of held-out data: no sample is used twice."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from torch.utils.data.sampler import RandomSampler, WeightedRandomSampler

Key = tuple[int, int]  # identity of a data source, and position of a sample in it


def check_apart(name: str, loader: Any, others: Iterable[tuple[str, Any]]) -> None:
    """Raise if a loader yields samples of one of the other loaders.

    Samples are the same if they are the same rows of the same dataset or tensor. Equal copies of
    data are not noticed, and neither is an overlap of iterables that are not loaders or lists.
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
    drawn = isinstance(sampler, RandomSampler | WeightedRandomSampler) and sampler.replacement
    if drawn:
        got = f"{type(sampler).__name__} with replacement"
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
    dataset = getattr(loader, "dataset", loader)
    if isinstance(dataset, Dataset) and hasattr(dataset, "__len__"):
        positions = getattr(sampler_of(loader), "indices", None)  # of a SubsetRandomSampler
        return _dataset_keys(dataset, range(len(dataset)) if positions is None else positions)
    if isinstance(loader, Sequence):
        return [key for batch in loader for key in _tensor_keys(_first_tensor(batch))]
    return []


def sampler_of(loader: Any) -> Any:
    """Return what draws the positions, also if it is inside of a batch sampler."""
    sampler = getattr(loader, "batch_sampler", None) or getattr(loader, "sampler", None)
    while getattr(sampler, "sampler", None) is not None:
        sampler = sampler.sampler  # type: ignore[union-attr]
    return sampler


def _dataset_keys(dataset: Any, positions: Iterable[Any]) -> list[Key]:
    while isinstance(dataset, Subset):
        indices = dataset.indices
        dataset, positions = dataset.dataset, [indices[int(i)] for i in positions]
    if isinstance(dataset, ConcatDataset):
        parts: list[Any] = dataset.datasets
        rows = [key for part in parts for key in _dataset_keys(part, range(len(part)))]
    elif isinstance(dataset, TensorDataset):
        rows = _tensor_keys(dataset.tensors[0])
    else:
        return [(id(dataset), int(i)) for i in positions]
    return [rows[int(i)] for i in positions]


def _tensor_keys(tensor: Tensor | None) -> list[Key]:
    """Identify the rows of a tensor by their place in memory."""
    if tensor is None or tensor.dim() == 0:
        return []
    storage, start = tensor.untyped_storage().data_ptr(), int(tensor.storage_offset())
    return [(storage, start + i * max(1, tensor.stride(0))) for i in range(len(tensor))]


def _first_tensor(batch: Any) -> Tensor | None:
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return next((found for part in batch if (found := _first_tensor(part)) is not None), None)
    return batch if isinstance(batch, Tensor) else None
