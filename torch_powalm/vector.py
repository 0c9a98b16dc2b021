"""BlockVector: the blocks of one optimizer as one flat vector, and back to names."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from torch_powalm.blocks import Block, Tally, violation
from torch_powalm.functional import norm
from torch_powalm.result import Violation
from torch_powalm.sharding import full


class BlockVector:
    """Blocks as one flat vector: parameter-only blocks first, then batch blocks.

    Sizes of parameter-only blocks are learned here, once; a later change raises.

    Args:
        blocks: at least one.
        device: where the vector lives.
        sharded: whether parameters are split over processes, so that values may be too.
    """

    def __init__(self, blocks: Sequence[Block], device: torch.device, sharded: bool) -> None:
        self.device, self.sharded = device, sharded
        self.static = [block for block in blocks if block.fn is not None]
        self.batch = [block for block in blocks if block.fn is None]
        self.sizes: dict[str, int] = {}
        with torch.no_grad():
            static = [len(value) for value in self._static_values()]
        for block, size in zip(self.static, static, strict=True):
            self.sizes[block.name] = size
        for block in self.batch:
            self.sizes[block.name] = block.size or 0
        self.static_size = sum(static)
        self.names = list(self.sizes)
        self.lengths = list(self.sizes.values())
        kinds = [block.inequality for block in (*self.static, *self.batch)]
        self.inequality = (
            torch.tensor(kinds).repeat_interleave(torch.tensor(self.lengths)).to(device)
            if any(kinds)
            else None
        )

    def slices(self) -> list[slice]:
        """The place of every block in the vector."""
        ends = [sum(self.lengths[: i + 1]) for i in range(len(self.lengths))]
        return [slice(end - size, end) for end, size in zip(ends, self.lengths, strict=True)]

    def evaluate(self) -> Tensor:
        """Values of the parameter-only blocks, flat, with a graph where gradients are enabled."""
        values = self._static_values()
        return values[0] if len(values) == 1 else torch.cat(values)

    def static_values(self) -> dict[str, Tensor]:
        """Values of the parameter-only blocks by name."""
        return {b.name: v for b, v in zip(self.static, self._static_values(), strict=True)}

    def batch_values(self, tallies: Mapping[str, Tally]) -> Tensor:
        """Values of the batch blocks, flat."""
        values = [tallies[block.name].value(block) for block in self.batch]
        return (values[0] if len(values) == 1 else torch.cat(values)).to(self.device)

    def join(self, static: Tensor | None, batch: Tensor | None) -> Tensor:
        """The whole vector from its two parts; a part is None when it has no blocks."""
        if batch is None and static is not None:
            return static.detach()
        if static is None and batch is not None:
            return batch.detach()
        return torch.cat([part.detach() for part in (static, batch) if part is not None])

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """The pieces of a vector by block name."""
        return dict(zip(self.names, torch.split(vector, self.lengths), strict=True))

    def pack(self, pieces: Mapping[str, Tensor]) -> Tensor:
        """A vector from saved pieces; a missing, unknown or resized block raises."""
        self.check_names(pieces)
        for name in self.names:
            if name not in pieces:
                raise ValueError(f"state_dict must have constraint {name!r}, got {list(pieces)}")
            piece, what = pieces[name], f"constraint {name!r} in state_dict"
            if not isinstance(piece, Tensor):
                raise ValueError(f"{what} must be a tensor, got {type(piece).__name__}")
            if len(piece) != self.sizes[name]:
                raise ValueError(f"{what} must have {self.sizes[name]} entries, got {len(piece)}")
        return torch.cat([pieces[name] for name in self.names]).to(self.device)

    def check_names(self, names: Iterable[str]) -> None:
        """Raise when a saved block is not one of these."""
        for name in names:
            if name not in self.sizes:
                raise ValueError(f"state_dict must have registered constraints only, got {name!r}")

    def violations(self, vector: Tensor) -> dict[str, Violation]:
        """Violation by block name."""
        blocks = {block.name: block for block in (*self.static, *self.batch)}
        return {name: violation(blocks[name], v) for name, v in self.split(vector).items()}

    def not_finite(self, vector: Tensor) -> str:
        """Name of the first block with an entry that is not finite."""
        return next(n for n, v in self.split(vector).items() if not math.isfinite(norm(v)))

    def _static_values(self) -> list[Tensor]:
        values = []
        with full_precision(self.device):
            for block in self.static:
                raw = block.fn()  # type: ignore[misc]
                value = block.flat(full(raw) if self.sharded else raw, self.sizes.get(block.name))
                values.append(value if value.device == self.device else value.to(self.device))
        return values


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Switches autocast off: in low precision, constraints and their gradients would be noise."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
