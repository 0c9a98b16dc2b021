"""ConstraintRegistry: constraint blocks by name, and what the running epoch has said about them.

A block depends on parameters only (a function without arguments) or on the batch (its value is
handed to `PowerALMOptimizer.augment`, or to `observe` where nothing is trained).
"""

import keyword
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import torch
from torch import Tensor

from torch_powalm.blocks import (
    BatchValue,
    Block,
    ConstraintFn,
    Tally,
    check_samples,
    tally,
    violation,
)
from torch_powalm.ranks import Ranks
from torch_powalm.result import Violation
from torch_powalm.sharding import full

F = TypeVar("F", bound=ConstraintFn)

_RESERVED = ("samples", "strict", "window")  # keywords of augment()


class ConstraintRegistry:
    """Constraints by name, in the order of registration.

    A block is given by a function without arguments when it depends on parameters only, and by its
    size when its value comes with the batch:

        constraints.equality("unit_rows", lambda: model[0].weight.square().sum(1) - 1)
        constraints.inequality("class_loss", size=10)
        constraints.inequality("rate", size=1, from_statistics=lambda s: s[:1] / s[1:] - 0.02)

    Functions should reach parameters through the module (`lambda: model.fc.weight`) and must not
    draw random numbers. Registration ends at the first step of an optimizer that uses the registry.
    """

    def __init__(self) -> None:
        self.blocks: dict[str, Block] = {}
        self.epoch: dict[str, Tally] = {}  # batch blocks, since the last multiplier update
        self.latest: dict[str, Tensor] = {}  # batch blocks, at the last multiplier update
        self.observed: dict[str, Tally] = {}  # batch blocks, since the last take_observed()
        self._owners: dict[str, object] = {}
        self._in_use = False

    @overload
    def equality(self, name: str, fn: F) -> F: ...
    @overload
    def equality(
        self,
        name: str,
        fn: None = None,
        *,
        size: int,
        from_statistics: Callable[[Tensor], Tensor] | None = None,
    ) -> None: ...
    @overload
    def equality(self, name: str) -> Callable[[F], F]: ...
    def equality(self, name: str, fn: Any = None, **batch: Any) -> Any:  # noqa: D417
        """Register A(x) = 0.

        Args:
            name: a Python identifier, not yet taken.
            fn: function without arguments; leave it out for a batch block or as a decorator.
            size: number of entries of a batch block.
            from_statistics: maps the sum of additive statistics to the constraint's value.
        """
        return self._register(name, False, fn, **batch)

    @overload
    def inequality(self, name: str, fn: F) -> F: ...
    @overload
    def inequality(
        self,
        name: str,
        fn: None = None,
        *,
        size: int,
        from_statistics: Callable[[Tensor], Tensor] | None = None,
    ) -> None: ...
    @overload
    def inequality(self, name: str) -> Callable[[F], F]: ...
    def inequality(self, name: str, fn: Any = None, **batch: Any) -> Any:
        """Register B(x) ≤ 0, with the arguments of `equality`."""
        return self._register(name, True, fn, **batch)

    @torch.no_grad()
    def violations(self) -> dict[str, Violation]:
        """Violation by block, now: parameter-only blocks are evaluated.

        Batch blocks show the running epoch, or the last one when no batch has been seen since;
        a batch block that has never been seen is left out.
        """
        found = {}
        for name, block in self.blocks.items():
            if block.fn is not None:
                found[name] = violation(block, block.flat(full(block.fn()), block.size))
            elif name in self.epoch:
                found[name] = violation(block, self.epoch[name].value(block))
            elif name in self.latest:
                found[name] = violation(block, self.latest[name])
        return found

    @torch.no_grad()
    def observe(self, *, samples: float = 1.0, **values: BatchValue) -> None:
        """Look at batch blocks where nothing is trained, as in validation: multipliers stay.

        Args:
            samples: weight of this batch in the averages.
            **values: for any batch blocks what `PowerALMOptimizer.augment` takes.
        """
        check_samples(samples)
        for name, value in values.items():
            if name not in self.blocks or self.blocks[name].fn is not None:
                raise KeyError(f"observe has no batch constraint {name!r}")
            seen = tally(self.blocks[name], value, samples).snapshot()
            self.observed[name] = self.observed[name].plus(seen) if name in self.observed else seen

    @torch.no_grad()
    def take_observed(self, process_group: Any = None) -> dict[str, Violation]:
        """Violation by block of what all ranks have observed since the last call of this.

        Args:
            process_group: the ranks, all of which must call this and have observed the same
                blocks; None for the default group when torch.distributed is initialised.
        """
        seen, self.observed = self.observed, {}
        ranks = Ranks(process_group)
        if seen and ranks.size > 1:
            (seen,) = ranks.sums(seen, device=next(iter(seen.values())).total.device)
        blocks = self.blocks
        return {name: violation(blocks[name], t.value(blocks[name])) for name, t in seen.items()}

    def claim(self, names: Sequence[str], owner: object) -> None:
        """Give the named blocks to an owner, and close the registration."""
        self._in_use = True
        self._owners.update(dict.fromkeys(names, owner))

    def check_owner(self, names: Sequence[str], owner: object) -> None:
        """Raise when another owner has claimed one of the blocks since."""
        for name in names:
            if self._owners.get(name) is not owner:
                raise RuntimeError(
                    f"constraint {name!r} is owned by an optimizer that was built later; "
                    "say with owns= which blocks each optimizer has"
                )

    def _register(
        self,
        name: str,
        inequality: bool,
        fn: Any,
        size: int | None = None,
        from_statistics: Callable[[Tensor], Tensor] | None = None,
    ) -> Any:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"name must be a Python identifier, got {name!r}")
        if name in _RESERVED:
            raise ValueError(f"name must not be one of {', '.join(_RESERVED)}, got {name!r}")
        if name in self.blocks:
            raise ValueError(f"constraint {name!r} is already registered")
        if self._in_use:
            raise RuntimeError(
                f"cannot register {name!r}: the registry is in use by an optimizer; "
                "register constraints before its first step"
            )
        if fn is not None and not callable(fn):
            raise TypeError(f"fn of {name!r} must be callable, got {type(fn).__name__}")
        if fn is not None and size is not None:
            raise ValueError(f"fn and size of {name!r} exclude each other, got both")
        if size is not None and (not isinstance(size, int) or size < 1):
            raise ValueError(f"size of {name!r} must be a positive integer, got {size!r}")
        if from_statistics is not None and size is None:
            raise ValueError(f"size of {name!r} must be given with from_statistics, got None")
        if fn is None and size is None:
            return lambda decorated: self._register(name, inequality, decorated)
        self.blocks[name] = Block(name, inequality, fn, size, from_statistics)
        return fn
