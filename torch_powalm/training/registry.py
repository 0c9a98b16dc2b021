"""ConstraintRegistry: constraint blocks by name, and their running sums over batches.

A block depends on parameters only (a function) or on the batch (its value is passed to
`PowerALMOptimizer.augment`, or to `observe` outside of training).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from torch_powalm.result import Violation
from torch_powalm.training.batch_window import Tallies
from torch_powalm.training.block import BatchValue, check_samples, tally
from torch_powalm.training.distributed.reductions import Ranks
from torch_powalm.training.distributed.sharded_tensors import full
from torch_powalm.training.on_device.transfer import to_host
from torch_powalm.training.proxy_value import ProxyValue
from torch_powalm.training.registration import Registration


class ConstraintRegistry(Registration):
    """Constraints by name, in the order of registration.

    Give a function without arguments for a block that depends on parameters only, and a size for
    a block whose value comes with the batch:

        constraints.equality("unit_rows", lambda: model[0].weight.square().sum(1) - 1)
        constraints.inequality("class_loss", size=10)
        constraints.inequality("rate", size=1, from_statistics=lambda s: s[:1] / s[1:] - 0.02)

    Functions should reach parameters through the module (`lambda: model.fc.weight`) and must not
    draw random numbers. They run with gradients enabled, so they may use `torch.autograd.grad`.
    Registration ends at the first step of an optimizer that uses the registry.
    """

    def __init__(self) -> None:
        super().__init__()
        self._epoch: Tallies = {}  # batch blocks, since the last multiplier update
        self._latest: dict[str, Tensor] = {}  # batch blocks, at the last multiplier update
        self._seen: dict[str, Tensor] = {}  # entries of batch blocks in any batch before that
        self._observed: Tallies = {}  # batch blocks, since the last take_observed()
        self.margin_data: list[Any] = []  # loaders that margins come from; `certify` refuses them

    @torch.no_grad()
    def values(self, *, model: Any = None) -> dict[str, Tensor]:
        """Return the current value of each block as a flat vector, in the units of its function.

        Parameter-only blocks are evaluated now. Batch blocks report the current epoch, or the last
        one if no batch has been seen since then; entries that were never seen are nan.

        Args:
            model: evaluate this model, such as an average of weights: only the blocks that are
                functions, which must have been registered with a model.
        """
        found = self._current(model)
        masks = {name: self.seen(name) for name in found}
        return {
            name: value if (seen := masks[name]) is None else torch.where(seen, value, torch.nan)
            for name, value in found.items()
        }

    @torch.no_grad()
    def violations(self, *, model: Any = None) -> dict[str, Violation]:
        """Return the current violation of each block, with the arguments of `values`."""
        found = {n: v for n, v in self._current(model).items() if n not in self.indexed}
        indexed = {} if model is not None else self.indexed
        masks = self.seen_entries(found)
        if any(not value.is_cpu for value in found.values()):  # in one transfer
            read = iter(to_host([*found.values(), *masks.values()]))
            found, masks = {n: next(read) for n in found}, {n: next(read) for n in masks}
        seen = {n: self.blocks[n].violation(v, masks.get(n)) for n, v in found.items()}
        seen |= {name: part.violation() for name, part in indexed.items() if len(part.y)}
        return {name: seen[name] for name in self.blocks if name in seen}

    def _current(self, model: Any) -> dict[str, Tensor]:
        """Return the values of the blocks, 0 for an entry that was never seen."""
        found = {}
        for name, block in self.blocks.items():
            if block.fn is not None:
                if model is not None and block.model is None:
                    raise ValueError(
                        f"constraint {name!r} must be registered with model=, got none"
                    )
                found[name] = block.flat(full(block.evaluate(model)), block.size)
            elif model is not None:
                continue
            elif name in self.indexed:
                found[name] = self.indexed[name].value.nan_to_num()
            elif name in self._epoch:
                found[name] = self._epoch[name].value(block)
            else:
                found[name] = self._latest.get(name, torch.zeros(block.size or 0))
        return found

    def seen(self, name: str) -> Tensor | None:
        """Return which entries of a batch block have been in any batch; None for a function."""
        block = self.blocks[name]
        if block.fn is not None:
            return None
        if name in self.indexed:
            return ~self.indexed[name].value.isnan()
        before = self._seen.get(name, torch.zeros(block.size or 0) > 0)
        if name not in self._epoch:
            return before
        now = self._epoch[name].present(block)
        return now | before.to(now.device)

    def mark_seen(self, name: str, entries: Tensor) -> None:
        """Record which entries of a batch block have been seen."""
        self._seen[name] = entries

    @torch.no_grad()
    def observe(self, *, samples: float = 1.0, **values: BatchValue | ProxyValue) -> None:
        """Record batch blocks outside training, e.g. in validation; multipliers do not change.

        Args:
            samples: weight of this batch in the averages.
            **values: values of any batch blocks, as `PowerALMOptimizer.augment` takes them.
        """
        check_samples(samples)
        for name, value in values.items():
            known = name in self.blocks and name not in self.indexed
            if not known or self.blocks[name].fn is not None:
                raise KeyError(f"observe has no batch constraint {name!r}")
            strict = value.strict if isinstance(value, ProxyValue) else value
            seen = tally(self.blocks[name], strict, samples).snapshot()
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
        found = [(self.blocks[name], t) for name, t in seen.items()]
        return {block.name: block.violation(t.value(block), t.present(block)) for block, t in found}

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
        self._seen.update(self.seen_entries(latest))
        for name in latest:
            self._epoch.pop(name, None)
        self._latest.update(latest)

    def seen_entries(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Return which entries of batch blocks have been in any batch."""
        return {name: mask for name in names if (mask := self.seen(name)) is not None}

    def restore(
        self,
        names: Iterable[str],
        sums: Tallies,
        latest: Mapping[str, Tensor],
        seen: Mapping[str, Tensor],
    ) -> None:
        """Continue the epoch of the named blocks from saved sums and latest values."""
        for name in names:
            for past in (self._epoch, self._latest, self._seen):
                past.pop(name, None)
        self._epoch.update(sums)
        self._latest.update(latest)
        self._seen.update(seen)

    def claim(self, names: Iterable[str], owner: object) -> None:
        """Assign the named blocks to an owner, and close registration."""
        self.owners.update(dict.fromkeys(names, owner))

    def __repr__(self) -> str:
        if not self.blocks:
            return "ConstraintRegistry()"
        return "\n".join(["ConstraintRegistry(", *(f"  {b}" for b in self.blocks.values()), ")"])
