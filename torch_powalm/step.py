"""InnerStep: one step of the base along the augmented gradient, and the prox terms after it.

Most bases take the gradient in .grad. A base that searches (LBFGS) evaluates L_β at several points
instead, by a closure that returns its value.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_powalm import sharding
from torch_powalm.batch import Tallies
from torch_powalm.gradient import AugmentedGradient
from torch_powalm.prox import Proximable
from torch_powalm.wrapper import base_step, is_stepped_by_lightning


class InnerStep:
    """Steps of a base, with the gradient that is made complete before and the books kept after.

    Args:
        gradient: the augmented gradient of the base's parameters.
        prox: convex terms by parameter.
    """

    def __init__(self, gradient: AugmentedGradient, prox: Mapping[Tensor, Proximable]) -> None:
        base = gradient.lagrangian.base
        known = {id(p) for p in gradient.lagrangian.params}
        for p in prox:
            if id(p) not in known:
                raise ValueError(f"prox must have parameters of base as keys, got {p!r}")
        if prox and any("lr" not in group for group in base.param_groups):
            raise ValueError("prox must come with a base that has a learning rate, got none")
        self.base, self.gradient, self.prox = base, gradient, list(prox.items())
        # A Lightning callback moves the multipliers, or none does, as said; None before any step.
        self.watched: bool | None = None

    def with_gradients(self, **kwargs: Any) -> Any:
        """A step by what is in .grad."""
        if self.watched is None:
            self._look_for_callback()
        gradient = self.gradient
        vector, params = gradient.lagrangian.ready(), gradient.lagrangian.params
        sums = gradient.epoch.sums_with(gradient.window, vector)
        if not gradient.inject(vector, params) or not gradient.is_finite(vector, params):
            return self._skip()
        result = base_step(self.base, **kwargs)
        self._finish(sums)
        return result

    def with_closure(self, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """A step by a closure that calls backward on the (augmented) loss and returns it."""
        if self.watched is None:
            self._look_for_callback()
        if _searches(self.base):
            return self._search(closure, **kwargs)
        with torch.enable_grad():
            loss = closure()
        if loss is None and all(p.grad is None for p in self.gradient.lagrangian.params):
            return None  # a batch that Lightning's training_step has left out
        self.with_gradients(**kwargs)
        return loss

    def initialises_state(self) -> bool:
        """Whether this is the empty step by which torch's distributed checkpoints make state."""
        grads = [p.grad for p in self.gradient.lagrangian.params if p.requires_grad]
        return (
            all(float(group.get("lr", 0.0)) == 0 for group in self.base.param_groups)
            and all(grad is not None for grad in grads)
            and sharding.total_norm([grad for grad in grads if grad is not None]) == 0
        )

    def _look_for_callback(self) -> None:
        """Warn when a Lightning trainer makes the first step and no callback watches."""
        self.watched = is_stepped_by_lightning()
        if self.watched:
            warnings.warn(
                "the trainer has no PowerALMCallback: multipliers stay as they are unless the "
                "module calls update_multipliers(); add torch_powalm.lightning.PowerALMCallback()",
                stacklevel=5,
            )

    def _search(self, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """A step of a base that may evaluate L_β at several points."""
        gradient, dual = self.gradient, self.gradient.lagrangian.dual
        vector, params = gradient.lagrangian.ready(), gradient.lagrangian.params
        first: list[Any] = []  # the closure's first value, and the epoch's sums with its batch
        # A line search evaluates at trial points; a failure there must not leave them behind.
        backup = [p.detach().clone() for p in params]

        def augmented_closure() -> Any:
            with torch.enable_grad():
                loss = closure()
            if not gradient.inject(vector, params) or not gradient.is_finite(vector, params):
                raise _NotFiniteError
            if not first:
                first.extend((loss, gradient.epoch.sums_with(gradient.window, vector)))
            gradient.injected = None
            return loss if loss is None else loss + dual.value(gradient.residual(vector)[1])

        try:
            self.base.step(augmented_closure, **kwargs)
        except (_NotFiniteError, FloatingPointError) as error:
            with torch.no_grad():
                for p, old in zip(params, backup, strict=True):
                    p.copy_(old)
            if first:  # the base was inside its search: what it has learned there goes
                self.base.state.clear()
            if isinstance(error, FloatingPointError):
                raise
            return self._skip()
        self._finish(first[1] if first else {})
        return first[0] if first else None

    def _finish(self, sums: Tallies) -> None:
        """Prox terms, and the books."""
        if self.prox:
            with torch.no_grad():
                self._apply_prox()
        self.gradient.epoch.count_step(sums)
        self.gradient.clear()

    def _apply_prox(self) -> None:
        groups = self.base.param_groups
        lr = {id(p): float(group["lr"]) for group in groups for p in group["params"]}
        for p, g in self.prox:
            p.copy_(sharding.as_shard(g.prox(sharding.full(p), lr[id(p)]), p))

    def _skip(self) -> None:
        self.gradient.epoch.skipped += 1
        self.gradient.clear()


class _NotFiniteError(Exception):
    """Leaves the base's step when on_nonfinite="skip"."""


def _searches(base: Optimizer) -> bool:
    """Whether a step may call its closure more than once."""
    from_torch = type(base).__module__.startswith("torch.") and "step" not in base.__dict__
    return isinstance(base, torch.optim.LBFGS) or not from_torch
