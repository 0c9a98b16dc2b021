"""Checks of held-out data: no sample is used twice, and the model is in evaluation mode."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

Key = tuple[int, int]  # identity of a data source, and position of a sample in it


def check_apart(name: str, loader: Any, others: Iterable[tuple[str, Any]]) -> None:
    """Raise if a loader yields samples of one of the other loaders.

    Samples are the same if they are the same rows of the same dataset or tensor. Equal copies of
    data are not noticed, and neither is an overlap of iterables that are not loaders or lists.
    """
    own = None
    for other_name, other in others:
        own = sample_keys(loader) if own is None else own
        common = len(own & sample_keys(other))
        if other is loader or common:
            got = "the same loader" if other is loader else f"{common} samples in common"
            raise ValueError(f"{name} must have no samples of {other_name}, got {got}")


def sample_keys(loader: Any) -> set[Key]:
    """Return what identifies the samples of a loader; empty if that is not known."""
    dataset = getattr(loader, "dataset", loader)
    if isinstance(dataset, Dataset) and hasattr(dataset, "__len__"):
        sampler = getattr(loader, "sampler", None)
        positions = getattr(sampler, "indices", None)  # of a SubsetRandomSampler
        return set(_dataset_keys(dataset, range(len(dataset)) if positions is None else positions))
    if isinstance(loader, Sequence):
        return {key for batch in loader for key in _tensor_keys(_first_tensor(batch))}
    return set()


def _dataset_keys(dataset: Any, positions: Iterable[Any]) -> Iterator[Key]:
    while isinstance(dataset, Subset):
        indices = dataset.indices
        dataset, positions = dataset.dataset, [indices[int(i)] for i in positions]
    if isinstance(dataset, TensorDataset):
        rows = list(_tensor_keys(dataset.tensors[0]))
        return iter([rows[int(i)] for i in positions])
    return iter([(id(dataset), int(i)) for i in positions])


def _tensor_keys(tensor: Tensor | None) -> Iterator[Key]:
    """Identify the rows of a tensor by their place in memory."""
    if tensor is None or tensor.dim() == 0:
        return
    storage, start = tensor.untyped_storage().data_ptr(), int(tensor.storage_offset())
    for i in range(len(tensor)):
        yield storage, start + i * max(1, tensor.stride(0))


def _first_tensor(batch: Any) -> Tensor | None:
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return next((found for part in batch if (found := _first_tensor(part)) is not None), None)
    return batch if isinstance(batch, Tensor) else None


def check_evaluation_mode(measure: Callable[..., Any], model: nn.Module | None) -> None:
    """Raise if the model is in training mode; without one, look for models that `measure` uses."""
    found = {"model": model} if model is not None else _models(measure)
    for name, module in found.items():
        if isinstance(module, nn.Module) and module.training:
            raise ValueError(
                f"{name} must be in evaluation mode (call {name}.eval() first), got training mode"
            )


def _models(measure: Callable[..., Any]) -> dict[str, Any]:
    if isinstance(measure, nn.Module):
        return {"measure": measure}
    owner = getattr(measure, "__self__", None)
    found = {} if owner is None else {"measure.__self__": owner}
    try:
        names = inspect.getclosurevars(measure)
    except TypeError:  # not a Python function
        return found
    return {**found, **names.globals, **names.nonlocals}
