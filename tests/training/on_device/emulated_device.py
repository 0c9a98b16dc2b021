"""An accelerator, emulated on the CPU: counts what is read back from it.

Every tensor is on the device, except those that came from a transfer to the host, those made from
numbers, and what is computed from these alone. Reading a number of the device waits for it: item(),
bool(), tolist(), cpu(), numpy(), a copy to the host, or an operation whose shape depends on values.
"""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

READS = ("_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "unique_dim")
_METHODS = ("tolist", "cpu", "numpy")


class EmulatedDevice(TorchDispatchMode):
    """Counts the reads of tensors that are not on the host.

    Attributes:
        reads: the names of the operations that read, in order.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.reads: list[str] = []
        self._host = WeakTensorKeyDictionary()
        for name in _METHODS:
            patch.setattr(Tensor, name, self._counted(name, getattr(Tensor, name)))
        patch.setattr(torch, "tensor", self._made(torch.tensor))

    def _counted(self, name: str, method: Any) -> Any:
        def counted(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if not self.is_on_host(tensor):
                self.reads.append(name)
            return method(tensor, *args, **kwargs)

        return counted

    def _made(self, make: Any) -> Any:
        def made(*args: Any, **kwargs: Any) -> Tensor:
            tensor = make(*args, **kwargs)
            if kwargs.get("device") is None:
                self._host[tensor] = "made"
            return tensor

        return made

    def put_on_host(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self._host[tensor] = "fixed"

    def is_on_host(self, tensor: Tensor) -> bool:
        return tensor in self._host

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        on_host = all(self.is_on_host(t) for t in tensors)  # also what is made from numbers
        name = func.overloadpacket.__name__
        if name in READS and not on_host:
            self.reads.append(name)
        result = func(*args, **kwargs)
        copied = name == "_to_copy" and kwargs.get("device") == torch.device("cpu")
        if copied and not on_host:
            self.reads.append("copy to the host")
        inputs = {id(t) for t in tensors}
        for t in tree_leaves(result):
            if not isinstance(t, Tensor):
                continue
            if id(t) in inputs:  # in place: what takes numbers of the device is there
                if not on_host and self._host.get(t) == "made":
                    del self._host[t]
            elif on_host != copied:  # a copy changes sides
                self._host[t] = "made"
        return result
