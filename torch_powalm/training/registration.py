"""Registration: the part of ConstraintRegistry that declares constraints, and its checks."""

import keyword
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, overload

from torch import Tensor

from torch_powalm.training.block import Block, ConstraintFn
from torch_powalm.training.indexed.indexed_multipliers import IndexedMultipliers

F = TypeVar("F", bound=ConstraintFn)
Statistics = Callable[[Tensor], Tensor]
_RESERVED = ("samples", "strict", "window")  # keywords of augment()


class Registration:
    """Blocks by name, in the order of registration, and the optimizers that own them."""

    def __init__(self) -> None:
        self.blocks: dict[str, Block] = {}
        self.owners: dict[str, object] = {}  # set by `claim`
        self.indexed: dict[str, IndexedMultipliers] = {}  # multipliers of indexed blocks

    @overload
    def equality(self, name: str, fn: F, *, model: Any = None, scale: float | None = ...) -> F: ...
    @overload
    def equality(
        self,
        name: str,
        *,
        size: int,
        from_statistics: Statistics | None = ...,
        latest: bool = ...,
        scale: float | None = ...,
        indexed: bool = ...,
    ) -> None: ...
    @overload
    def equality(
        self, name: str, *, model: Any = None, scale: float | None = ...
    ) -> Callable[[F], F]: ...
    def equality(
        self,
        name: str,
        fn: Any = None,
        *,
        size: int | None = None,
        from_statistics: Statistics | None = None,
        latest: bool = False,
        model: Any = None,
        scale: float | None = None,
        indexed: bool = False,
    ) -> Any:
        """Register A(x) = 0.

        Args:
            name: a Python identifier, not yet taken.
            fn: function without arguments, or of `model`; leave it out for a batch block or as a
                decorator.
            size: number of entries of a batch block.
            from_statistics: maps the sum of additive statistics to the constraint's value.
            latest: for a batch block that is the same in every batch, as on a fixed grid: use its
                value at the latest step instead of an average over steps.
            model: the model that is passed to `fn`; `violations(model=...)` passes another one.
            scale: factor of the values in the penalty, > 0, instead of a measured one: 1/scale is
                a violation that you consider large. Reports stay in the units of the function.
            indexed: for a batch block with one entry per data point, of which a batch has a few:
                `augment` takes (value, index).
        """
        kind = name, False, fn, size, from_statistics, latest, model, scale, indexed
        return self._register(Block(*kind))

    @overload
    def inequality(
        self, name: str, fn: F, *, model: Any = None, scale: float | None = ...
    ) -> F: ...
    @overload
    def inequality(
        self,
        name: str,
        *,
        size: int,
        from_statistics: Statistics | None = ...,
        latest: bool = ...,
        scale: float | None = ...,
        indexed: bool = ...,
    ) -> None: ...
    @overload
    def inequality(
        self, name: str, *, model: Any = None, scale: float | None = ...
    ) -> Callable[[F], F]: ...
    def inequality(
        self,
        name: str,
        fn: Any = None,
        *,
        size: int | None = None,
        from_statistics: Statistics | None = None,
        latest: bool = False,
        model: Any = None,
        scale: float | None = None,
        indexed: bool = False,
    ) -> Any:
        """Register B(x) ≤ 0, with the arguments of `equality`."""
        kind = name, True, fn, size, from_statistics, latest, model, scale, indexed
        return self._register(Block(*kind))

    def _register(self, block: Block) -> Any:
        name = block.name
        _check_name(name)
        if name in self.blocks:
            raise ValueError(f"constraint {name!r} is already registered")
        if self.owners:
            raise RuntimeError(
                f"cannot register {name!r}: the registry is in use by an optimizer; "
                "register constraints before its first step"
            )
        _check_arguments(block)
        if block.fn is None and block.size is None:
            return lambda decorated: self._register(replace(block, fn=decorated))
        self.blocks[name] = block
        if block.indexed and block.size is not None:
            self.indexed[name] = IndexedMultipliers(name, block.size, block.inequality)
        return block.fn


def _check_name(name: object) -> None:
    """Raise unless the name can be a keyword of `augment`."""
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"name must be a Python identifier, got {name!r}")
    if name in _RESERVED:
        raise ValueError(f"name must not be one of {', '.join(_RESERVED)}, got {name!r}")


def _check_arguments(block: Block) -> None:
    """Raise unless the arguments fit either a function of the parameters or a batch block."""
    name, fn, size = block.name, block.fn, block.size
    if fn is not None and not callable(fn):
        raise TypeError(f"fn of {name!r} must be callable, got {type(fn).__name__}")
    if fn is not None and size is not None:
        raise ValueError(f"fn and size of {name!r} are mutually exclusive, got both")
    if size is not None and (not isinstance(size, int) or size < 1):
        raise ValueError(f"size of {name!r} must be a positive integer, got {size!r}")
    _check_batch_only("from_statistics", block.from_statistics, block)
    _check_batch_only("latest", block.latest or None, block)
    _check_batch_only("indexed", block.indexed or None, block)
    if block.indexed and (block.latest or block.from_statistics is not None):
        other = "latest" if block.latest else "from_statistics"
        raise ValueError(f"indexed and {other} of {name!r} are mutually exclusive, got both")
    if block.model is not None and size is not None:
        raise ValueError(f"model and size of {name!r} are mutually exclusive, got both")
    scale = block.scale
    if scale is not None and not (hasattr(scale, "__float__") and 0 < scale < math.inf):
        raise ValueError(f"scale of {name!r} must be positive and finite, got {scale!r}")


def _check_batch_only(argument: str, value: Any, block: Block) -> None:
    if value is not None and block.size is None:
        raise ValueError(f"size of {block.name!r} must be given with {argument}, got None")
