"""ConstraintRegistry: constraint blocks by name, and their running sums over batches.

A block depends on parameters only (a function without arguments) or on the batch (its value is
passed to `PowerALMOptimizer.augment`, or to `observe` outside of training).
"""

import keyword
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, overload

import torch
from torch import Tensor

from torch_powalm.result import Violation
from torch_powalm.training.batch_window import Tallies
from torch_powalm.training.block import BatchValue, Block, ConstraintFn, check_samples, tally
from torch_powalm.training.distributed.reductions import Ranks
from torch_powalm.training.distributed.sharded_tensors import full

F = TypeVar("F", bound=ConstraintFn)
Statistics = Callable[[Tensor], Tensor]

_RESERVED = ("samples", "strict", "window")  # keywords of augment()


class ConstraintRegistry:
    """Constraints by name, in the order of registration.

    Give a function without arguments for a block that depends on parameters only, and a size for
    a block whose value comes with the batch:

        constraints.equality("unit_rows", lambda: model[0].weight.square().sum(1) - 1)
        constraints.inequality("class_loss", size=10)
        constraints.inequality("rate", size=1, from_statistics=lambda s: s[:1] / s[1:] - 0.02)

    Functions should reach parameters through the module (`lambda: model.fc.weight`) and must not
    draw random numbers. Registration ends at the first step of an optimizer that uses the registry.
    """

    def __init__(self) -> None:
        self.blocks: dict[str, Block] = {}
        self._epoch: Tallies = {}  # batch blocks, since the last multiplier update
        self._latest: dict[str, Tensor] = {}  # batch blocks, at the last multiplier update
        self._observed: Tallies = {}  # batch blocks, since the last take_observed()
        self.owners: dict[str, object] = {}  # set by `claim`

    @overload
    def equality(self, name: str, fn: F) -> F: ...
    @overload
    def equality(
        self, name: str, *, size: int, from_statistics: Statistics | None = None
    ) -> None: ...
    @overload
    def equality(self, name: str) -> Callable[[F], F]: ...
    def equality(
        self,
        name: str,
        fn: Any = None,
        *,
        size: int | None = None,
        from_statistics: Statistics | None = None,
    ) -> Any:
        """Register A(x) = 0.

        Args:
            name: a Python identifier, not yet taken.
            fn: function without arguments; leave it out for a batch block or as a decorator.
            size: number of entries of a batch block.
            from_statistics: maps the sum of additive statistics to the constraint's value.
        """
        return self._register(name, False, fn, size, from_statistics)

    @overload
    def inequality(self, name: str, fn: F) -> F: ...
    @overload
    def inequality(
        self, name: str, *, size: int, from_statistics: Statistics | None = None
    ) -> None: ...
    @overload
    def inequality(self, name: str) -> Callable[[F], F]: ...
    def inequality(
        self,
        name: str,
        fn: Any = None,
        *,
        size: int | None = None,
        from_statistics: Statistics | None = None,
    ) -> Any:
        """Register B(x) ≤ 0, with the arguments of `equality`."""
        return self._register(name, True, fn, size, from_statistics)

    @torch.no_grad()
    def violations(self) -> dict[str, Violation]:
        """Return the current violation of each block; parameter-only blocks are evaluated now.

        Batch blocks report the current epoch, or the last one if no batch has been seen since then.
        A batch block that has never been seen is omitted.
        """
        found = {}
        for name, block in self.blocks.items():
            if block.fn is not None:
                found[name] = block.violation(block.flat(full(block.fn()), block.size))
            elif name in self._epoch:
                found[name] = block.violation(self._epoch[name].value(block))
            elif name in self._latest:
                found[name] = block.violation(self._latest[name])
        return found

    @torch.no_grad()
    def observe(self, *, samples: float = 1.0, **values: BatchValue) -> None:
        """Record batch blocks outside training, e.g. in validation; multipliers do not change.

        Args:
            samples: weight of this batch in the averages.
            **values: values of any batch blocks, as `PowerALMOptimizer.augment` takes them.
        """
        check_samples(samples)
        for name, value in values.items():
            if name not in self.blocks or self.blocks[name].fn is not None:
                raise KeyError(f"observe has no batch constraint {name!r}")
            seen = tally(self.blocks[name], value, samples).snapshot()
            past = self._observed.get(name)
            self._observed[name] = seen if past is None else past.plus(seen)

    @torch.no_grad()
    def take_observed(self, process_group: Any = None) -> dict[str, Violation]:
        """Return the violation of each block over the values all ranks observed, and start over.

        Args:
            process_group: the ranks; all of them must call this, and must have observed the same
                blocks. None for the default group if torch.distributed is initialized.
        """
        seen, self._observed = self._observed, {}
        ranks = Ranks(process_group)
        if seen and ranks.size > 1:
            (seen,) = ranks.sums(seen, device=next(iter(seen.values())).total.device)
        blocks = self.blocks
        return {name: blocks[name].violation(t.value(blocks[name])) for name, t in seen.items()}

    def epoch_sums(self, names: Iterable[str]) -> Tallies:
        """Return the sums of batch blocks since the last multiplier update."""
        return {name: self._epoch[name] for name in names if name in self._epoch}

    def latest_values(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Return the values of batch blocks at the last multiplier update."""
        return {name: self._latest[name] for name in names if name in self._latest}

    def record_step(self, sums: Tallies) -> None:
        """Store the sums of the epoch after a step."""
        self._epoch.update(sums)

    def restart_epoch(self, latest: Mapping[str, Tensor]) -> None:
        """Start a new epoch for some blocks, and store their values at the end of the last one."""
        for name in latest:
            self._epoch.pop(name, None)
        self._latest.update(latest)

    def restore(self, names: Iterable[str], sums: Tallies, latest: Mapping[str, Tensor]) -> None:
        """Continue the epoch of the named blocks from saved sums and latest values."""
        for name in names:
            self._epoch.pop(name, None)
        self._epoch.update(sums)
        self._latest.update(latest)

    def claim(self, names: Iterable[str], owner: object) -> None:
        """Assign the named blocks to an owner, and close registration."""
        self.owners.update(dict.fromkeys(names, owner))

    def __repr__(self) -> str:
        if not self.blocks:
            return "ConstraintRegistry()"
        return "\n".join(["ConstraintRegistry(", *(f"  {b}" for b in self.blocks.values()), ")"])

    def _register(
        self,
        name: str,
        inequality: bool,
        fn: Any,
        size: int | None = None,
        from_statistics: Statistics | None = None,
    ) -> Any:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"name must be a Python identifier, got {name!r}")
        if name in _RESERVED:
            raise ValueError(f"name must not be one of {', '.join(_RESERVED)}, got {name!r}")
        if name in self.blocks:
            raise ValueError(f"constraint {name!r} is already registered")
        if self.owners:
            raise RuntimeError(
                f"cannot register {name!r}: the registry is in use by an optimizer; "
                "register constraints before its first step"
            )
        if fn is not None and not callable(fn):
            raise TypeError(f"fn of {name!r} must be callable, got {type(fn).__name__}")
        if fn is not None and size is not None:
            raise ValueError(f"fn and size of {name!r} are mutually exclusive, got both")
        if size is not None and (not isinstance(size, int) or size < 1):
            raise ValueError(f"size of {name!r} must be a positive integer, got {size!r}")
        if from_statistics is not None and size is None:
            raise ValueError(f"size of {name!r} must be given with from_statistics, got None")
        if fn is None and size is None:
            return lambda decorated: self._register(name, inequality, decorated)
        self.blocks[name] = Block(name, inequality, fn, size, from_statistics)
        return fn
