"""DualTensors: the copy of y, β and the scales on the device, from which a step takes its weight.

`DualState` stays on the host, where an update reads and changes it; afterwards `publish` copies it
into the same tensors. A step never sees a number of Python that an update changes.
"""

import math
from typing import Any

import torch
from torch import Tensor

from torch_powalm.dual import DualState
from torch_powalm.functional import violation
from torch_powalm.training.on_device.tensor_formulas import (
    length,
    norm,
    scaled_add,
    shortening,
    slack_stiffness,
    wide,
)


class DualTensors:
    """y, β and the scales of a `DualState` on a device.

    Args:
        dual: the state on the host.
        device: where r is.
    """

    def __init__(self, dual: DualState, device: torch.device) -> None:
        self.dual, self.device = dual, device
        self.y = torch.empty(0, device=device)
        self.beta = torch.ones((), dtype=wide(device), device=device)
        self.far = torch.ones_like(self.beta)
        self.lower: Tensor | None = None
        self.w_min: Tensor | None = None
        self.scale: Tensor | None = None
        self.inequality: Tensor | None = None
        self.groups: list[slice] = []
        self.parts: list[tuple[Tensor, Tensor] | None] = []  # by group: (inequalities, equalities)
        self._mask: Tensor | None = None  # of which `parts` are the indices
        self.nu, self.has_far = dual.nu, False
        self._source: tuple[Tensor, float, Tensor | None, float] | None = None

    def publish(self) -> None:
        """Copy the state of the host to the device, into the same memory if it is known there."""
        dual = self.dual
        for name, tensor in dual.tensors().items():
            setattr(self, name, self._copied(getattr(self, name), tensor))
        self.beta.fill_(dual.beta)
        self.far.fill_(min(dual.far, torch.finfo(self.far.dtype).max))
        if self.groups != dual.groups or self._mask is not dual.inequality:
            self.groups, self._mask = list(dual.groups), dual.inequality
            self.parts = [self._mixed(g) for g in self.groups]
        self.has_far = dual.far < math.inf
        self._source = dual.y, dual.beta, dual.scale, dual.far

    def _mixed(self, group: slice) -> tuple[Tensor, Tensor] | None:
        """Return the indices of inequalities and equalities in a group that has both."""
        if self._mask is None or self.nu == 1:
            return None
        mask = self._mask[group]
        bounded, free = (kind.nonzero().flatten().to(self.device) for kind in (mask, ~mask))
        return (bounded, free) if len(bounded) and len(free) else None

    def _copied(self, old: Any, new: Any) -> Any:
        if new is None:
            return None
        if old is None or old.shape != new.shape or old.dtype != new.dtype:
            return new.to(self.device, copy=True)
        return old.copy_(new, non_blocking=True)

    def refresh(self) -> None:
        """Copy the state if it has changed since the last copy."""
        dual, source = self.dual, self._source
        if torch.compiler.is_compiling() or not dual.started:
            return
        if source is None or dual.y is not source[0] or dual.scale is not source[2]:
            self.publish()
        elif (dual.beta, dual.far) != (source[1], source[3]):
            self.publish()

    def weight(self, r: Tensor) -> Tensor:
        """Return w = y + β∇φ at r; not finite if r is not."""
        if not self.dual.started:
            return r - r  # 0, or nan if r is not finite
        self.refresh()
        if self.scale is not None:
            r = r * self.scale
            if self.has_far:
                state = self.y, self.inequality, self.far, self.beta, self.nu
                r = r * shortening(r, *state).to(r.dtype)
        pieces = []
        for g, part in zip(self.groups, self.parts, strict=True):
            c = self._stiffness(r[g], None if self.lower is None else self.lower[g], part)
            pieces.append(scaled_add(self.y[g], r[g], c))
        w = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        if self.w_min is not None:
            w = torch.maximum(w, self.w_min)
        return w if self.scale is None else w * self.scale

    def _stiffness(
        self, r: Tensor, lower: Tensor | None, part: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """Return the stiffness of a group; the slack's equation sorts its inequalities alone."""
        if part is None or lower is None:
            return slack_stiffness(r, lower, self.beta, self.nu)
        bounded, free = part
        rest = length(r[free]).square()
        return slack_stiffness(r[bounded], lower[bounded], self.beta, self.nu, rest)

    def start_norms(self, r: Tensor) -> Tensor:
        """Return ‖∇φ(r)‖ and ‖r‖ where the slacks of all inequalities are free."""
        r = violation(r if self.scale is None else r * self.scale, self.inequality)
        norms = torch.stack([norm(r[g]) for g in self.groups])
        return torch.stack([norm(norms.pow(self.nu)), norm(norms)])
