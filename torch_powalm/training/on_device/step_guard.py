"""StepGuard: keeps values that are not finite out of a training without reading them.

A step whose constraints or gradient are not finite must change nothing. On an accelerator the host
does not know whether they are until the next transfer. So every step computes a flag on the device
and chooses between the old and the new value of all that changes:

    x ← where(ok, x_new, x)

for the parameters, the state of the base, the sums of the epoch and the running averages. A base
with fused kernels does so by itself. The flags are counted by block, and read at the next update.
"""

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_powalm.training.batch_window import Tallies
from torch_powalm.training.block import Tally
from torch_powalm.training.distributed.sharded_tensors import local
from torch_powalm.training.on_device.tensor_formulas import not_finite
from torch_powalm.training.optimizer_protocol import skips_on_device


class StepGuard:
    """Flag of the current step, and counts by block since the last update.

    Args:
        sizes: number of entries of each block.
        device: where they are.
    """

    def __init__(self, sizes: Mapping[str, int], device: torch.device) -> None:
        self.device, self.sizes = device, dict(sizes)
        # Entries that were not finite; steps with such a gradient, and steps left out.
        self.bad = torch.zeros(sum(sizes.values()), dtype=torch.bool, device=device)
        self.counts = torch.zeros(2, dtype=torch.int64, device=device)
        self._none = torch.zeros((), dtype=torch.bool, device=device)
        self.wrong = self._none  # whether a value of this step is not finite
        self.left_out = self._none  # whether a value or the gradient of this step is not finite
        self.ok = ~self._none
        self.culprits: list[str] = []  # blocks that were not finite, as far as the host knows
        self.bad_gradients = 0
        self._kept: list[tuple[Tensor, Tensor]] = []  # tensors that a step changes, and copies
        self._had: dict[Tensor, set[str]] = {}  # entries of the base's state before the step
        self._stepped: set[Tensor] = set()  # parameters that the base has moved without a state

    @torch.no_grad()
    def note(self, r: Tensor, start: int = 0) -> Tensor:
        """Mark entries that are not finite; return whether there are any.

        Args:
            r: consecutive entries of the vector of all blocks.
            start: index of the first of them.
        """
        bad = not_finite(r.detach())
        self.bad[start : start + len(r)].logical_or_(bad)
        return bad.any()

    def forgive(self) -> None:
        """Forget about the values of this step, whose gradients were cleared."""
        self.wrong = self._none

    @torch.no_grad()
    def judge(self, gradient_norm: Tensor) -> None:
        """Decide whether this step counts, given the norm of its gradient."""
        bad = not_finite(gradient_norm)
        self.left_out = bad if self.wrong is self._none else bad | self.wrong
        self.ok = ~self.left_out
        self.counts.add_(torch.stack([bad, self.left_out]))
        self.wrong = self._none

    @torch.no_grad()
    def refuses(self, base: Optimizer, params: Sequence[Tensor]) -> bool:
        """Whether the host must skip this step, because the base would create state in it.

        No copy of that state could be restored: ASGD, for one, creates its learning rates. So such
        a step is judged at once, which is one read at the first step of a training.
        """
        if torch.compiler.is_compiling() or _is_stateless(base):
            return False
        new = [p for p in params if p.grad is not None and p not in base.state]
        new = [p for p in new if p not in self._stepped]
        if not new:
            return False
        if not bool(self.left_out):
            self._stepped.update(new)
            return False
        self.counts[1] -= 1  # the optimizer counts it
        return True

    @torch.no_grad()
    def keep(self, base: Optimizer, params: Sequence[Tensor], prox: Sized) -> Tensor:
        """Before its step, keep what the base will change; return whether the step counts."""
        if skips_on_device(base) and not prox:
            base.grad_scale, base.found_inf = None, self.left_out.float()  # type: ignore[attr-defined]
            return self.ok
        self._had = {p: set(state) for p, state in base.state.items()}
        for p in params:
            if p.grad is not None and p not in self._had:  # its state will be made in this step
                if p.grad.is_sparse:
                    p.grad = p.grad.coalesce()
                else:
                    grad = local(p.grad)
                    grad.masked_fill_(self.left_out, 0.0)
        changing = [local(t) for t in (*params, *_tensors(base)) if t.device == self.device]
        self._kept = [(t, t.clone()) for t in changing]
        return self.ok

    @torch.no_grad()
    def finish(self, base: Optimizer, new: Tallies, old: Tallies) -> Tallies:
        """After the step of the base and the prox, undo it unless it counts.

        Returns the sums of the epoch after this step: the new ones, or the old.
        """
        self._restore(base)
        return {name: self._chosen(t, old.get(name)) for name, t in new.items()}

    def _restore(self, base: Optimizer) -> None:
        if hasattr(base, "found_inf"):
            del base.grad_scale, base.found_inf  # type: ignore[attr-defined]
            return
        for now, before in self._kept:
            now.copy_(torch.where(self.ok, now, before))
        for p, state in base.state.items():
            step = state.get("step")
            if "step" not in self._had.get(p, ()) and _is_on(step, self.device):
                step.masked_fill_(self.left_out, 0.0)
        self._kept, self._had = [], {}

    def _chosen(self, new: Tally, old: Tally | None) -> Tally:
        before = Tally(torch.zeros_like(new.total), 0.0) if old is None else old
        total = torch.where(self.ok, new.total, before.total)
        now, then = (
            w if isinstance(w, Tensor) else total.new_full((), w)
            for w in (new.weight, before.weight)
        )
        return Tally(total, torch.where(self.ok, now, then))

    def take(self, bad: Tensor, counts: Tensor) -> int:
        """Remember what was not finite; return the number of steps left out.

        Args:
            bad: a copy of `bad` on the host; the marks are cleared.
            counts: a copy of `counts` on the host, which start again.
        """
        self.bad.zero_()
        self.counts.zero_()
        parts = torch.split(bad, list(self.sizes.values()))
        found = [name for name, part in zip(self.sizes, parts, strict=True) if part.any()]
        self.culprits += [name for name in found if name not in self.culprits]
        gradients, left_out = counts.tolist()
        self.bad_gradients += gradients
        return int(left_out)

    def forget(self) -> None:
        """Start a new epoch."""
        self.culprits, self.bad_gradients = [], 0


def _tensors(base: Optimizer) -> list[Tensor]:
    """Return the tensors in the state of the base."""
    return [v for state in base.state.values() for v in state.values() if isinstance(v, Tensor)]


def _is_stateless(base: Optimizer) -> bool:
    return isinstance(base, torch.optim.SGD) and not any(g["momentum"] for g in base.param_groups)


def _is_on(value: Any, device: torch.device) -> bool:
    return isinstance(value, Tensor) and value.device == device
