"""IndexedBlocks: the indexed blocks of one optimizer, from `augment` to the update."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_powalm.checks.state_checks import check_keys
from torch_powalm.dual import DualState
from torch_powalm.functional import norm, step_size
from torch_powalm.result import DualRecord
from torch_powalm.training.augmented_loss import augmented_loss, newly_met, still_waiting
from torch_powalm.training.automatic_units import AutomaticUnits
from torch_powalm.training.batch_window import carries_gradient
from torch_powalm.training.block_vector import BlockVector
from torch_powalm.training.distributed.reductions import Ranks
from torch_powalm.training.indexed.entries import Entries, read_entries
from torch_powalm.training.indexed.indexed_multipliers import IndexedMultipliers
from torch_powalm.training.indexed.indexed_summary import described
from torch_powalm.training.indexed.rank_entries import Given, of_all_ranks

if TYPE_CHECKING:
    from torch_powalm.training.augmented_gradient import AugmentedGradient


@dataclass
class IndexedCall:
    """Entries of all ranks in one call of `augment`."""

    given: Given
    done: bool = False  # backward has passed through the augmented loss
    assumed: bool = False  # made in a compiled graph, which does not see backward
    met: bool = False  # this backward pass has reached the parameters


class IndexedBlocks:
    """What steps and updates do with indexed blocks.

    Args:
        blocks: the blocks of the optimizer.
        dual: β and the rule of the dual step.
        units: measured scales.
        ranks: the processes that train together.
    """

    def __init__(
        self, blocks: BlockVector, dual: DualState, units: AutomaticUnits, ranks: Ranks
    ) -> None:
        self.blocks, self.dual, self.units, self.ranks = blocks, dual, units, ranks
        self._beta = math.nan  # the penalty in use
        self.calls: list[IndexedCall] = []  # calls of `augment` since the last step

    @property
    def parts(self) -> list[IndexedMultipliers]:
        """The multipliers of the blocks."""
        return self.blocks.indexed

    def take(self, values: dict[str, Any]) -> Given:
        """Remove the entries of indexed blocks from the arguments of `augment`, and check them."""
        found = {}
        for part in self.parts:
            if part.name not in values:
                raise KeyError(f"augment must have a value for {part.name!r}, got none")
            found[part.name] = read_entries(
                part.name, part.size, values.pop(part.name), self._reads(part)
            )
        return found

    def _reads(self, part: IndexedMultipliers) -> bool:
        """Whether an index on the CPU may be read without waiting for the device."""
        return not self.blocks.deferred or not part.y.is_cpu

    def augmented(
        self, loss: Tensor, values: dict[str, Any], gradient: "AugmentedGradient"
    ) -> Tensor:
        """Return the loss with the gradient of loss + ⟨w, B⟩ for the entries of the batch.

        Args:
            loss: the loss.
            values: the arguments of `augment`, from which those of indexed blocks are removed.
            gradient: starts the multipliers, and knows what to do with values not finite.
        """
        given = self.take(values)
        if not self.blocks.sizes and not self.dual.started:
            gradient.start(torch.zeros(0, device=self.blocks.device))
        if not carries_gradient(loss, {name: e.value for name, e in given.items()}):
            return loss
        if self.ranks.size > 1:
            gradient.meet_ranks()
        seen, own = of_all_ranks(given, self.ranks, self.parts[0].y)
        if self.calls and all(p.grad is None for p in self.blocks.params):
            self.forget_done()
        if self.units.measuring or self.units.due_batch:
            values = self._sensitivities(given, seen)
            if self.blocks.batch:
                self.units.measure_blocks(self.blocks, values, self.ranks)
            else:
                self.units.measure_batch(loss, self.blocks, values, self.ranks)
        pending = self.units.pending
        weights = [
            _checked(self._weight(part, seen[part.name]), part.name, seen, gradient)[own[part.name]]
            for part in self.parts
        ]
        A = torch.cat([given[part.name].value for part in self.parts])
        self.calls.append(IndexedCall(seen))
        alone = pending is not None and pending in given
        w = torch.cat(weights).to(A.dtype)
        w = w * self.ranks.size if self.ranks.size > 1 else w  # undone by the mean over ranks
        return augmented_loss(loss, A, w, self.calls[-1], alone)

    def _sensitivities(self, given: Given, seen: Given) -> dict[str, Tensor]:
        """Return values by name whose gradients measure what a move changes of each block.

        √n times the mean: entries of a data set mostly move together, so that random signs would
        underestimate the pull of all of them by √n.
        """
        found = {}
        for part in self.parts:
            share = self.ranks.size * math.sqrt(part.size) / len(seen[part.name].indices)
            found[part.name] = given[part.name].value.sum().reshape(1) * share
        return found

    def _weight(self, part: IndexedMultipliers, entries: Entries) -> Tensor:
        if self.units.pending is not None:  # one block alone is measured in this step
            share = math.sqrt(part.size) / len(entries.indices)
            share = share if part.name == self.units.pending else 0.0
            return torch.full_like(entries.value, share)
        if not self.dual.started:
            return torch.zeros_like(entries.value)
        self.refresh()
        return part.weight(entries)

    def meets_backward(self) -> bool:
        """Whether the backward pass that now reaches the parameters is one of a call."""
        return newly_met(self.calls)

    def forget_done(self) -> None:
        """Forget the batches whose gradients were cleared."""
        self.calls = still_waiting(self.calls)

    def clear(self) -> None:
        """Forget all batches after a step."""
        self.calls = []

    def start(self) -> None:
        """Set the units, once they are known."""
        self._beta = math.nan
        self.refresh()

    def refresh(self) -> None:
        """Follow the penalty if somebody has changed it."""
        if torch.compiler.is_compiling() or not self.dual.started:
            return
        if self.dual.beta == self._beta:
            return
        self._beta = self.dual.beta
        for part in self.parts:
            scale = self.blocks.given.get(part.name)
            if scale is None:
                scale = self.units.used[part.name] if self.units.steps else 1.0
            part.set_units(scale, self._beta, self.dual.nu, self.dual.far)

    def follow(self, ok: Tensor | None) -> None:
        """Take the values of the batches of a step."""
        done = [call for call in self.calls if call.done]
        if not done:
            names = ", ".join(repr(part.name) for part in self.parts)
            raise RuntimeError(
                f"step needs the batch constraints {names}; "
                "call augment() first, and backward() on its result"
            )
        for call in done:
            for part in self.parts:
                part.follow(call.given[part.name], ok)

    def move(self) -> None:
        """Move the multipliers at an update, without reading anything.

        The step follows the rule of `DualState`; that of the paper at its smallest.
        """
        dual = self.dual
        if dual.started:
            sigma = step_size(dual.sigma, dual.sigma_1, dual.beta, 1.0, 1.0, dual.k)
            for part in self.parts:
                part.update(sigma, dual.sigma == "pi", dual.y_max)

    def renew(self) -> None:
        """Sum the norms anew, in the units of the next steps."""
        self.start()
        for part in self.parts:
            part.sum_anew()

    def summaries(self) -> list[Tensor]:
        """Return what an update says about all blocks, still on the device."""
        return [tensor for part in self.parts for tensor in part.summary()]

    def described(self, record: DualRecord, read: Sequence[Tensor]) -> DualRecord:
        """Return the record of an update together with these blocks."""
        violations, y_norms = dict(record.violations), [record.y_norm]
        lengths, size = [record.primal_residual], len(read) // max(1, len(self.parts))
        for i, part in enumerate(self.parts):
            summary = list(read[i * size : (i + 1) * size])
            violations[part.name] = described(summary, part.size)
            lengths.append(violations[part.name].norm)
            y_norms.append(float(summary[4]))
        primal = math.hypot(*[x for x in lengths if not math.isnan(x)])
        primal = math.nan if math.isnan(record.primal_residual) else primal
        y_norm = math.hypot(*y_norms)
        return replace(record, primal_residual=primal, y_norm=y_norm, violations=violations)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all blocks by name."""
        return {part.name: part.state_dict() for part in self.parts}

    def prepare_load(self, state: Any, where: str) -> Callable[[], None]:
        """Check a saved state; the returned function loads it."""
        names = [part.name for part in self.parts]
        check_keys(state, where, names)
        checked = {
            part.name: part.checked(state[part.name], f"{where}[{part.name!r}]")
            for part in self.parts
        }

        def load() -> None:
            for part in self.parts:
                part.load_state_dict(checked[part.name])
            self._beta = math.nan
            self.clear()

        return load


def _checked(w: Tensor, name: str, given: Given, gradient: "AugmentedGradient") -> Tensor:
    """Return the weight of a block, nan if a value in the batch is not finite."""
    value = given[name].value
    if gradient.device is not None:
        return gradient.device.spoil_indexed(name, value, w)
    finite = math.isfinite(norm(value)) or gradient.finite.fail(f"constraint {name!r}")
    return w if finite else torch.full_like(w, math.nan)
