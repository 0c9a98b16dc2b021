"""AugmentedGradient: how .grad becomes ∇L_β = ∇loss + J_Aᵀ w, in two parts.

    augment(loss, …)   batch blocks: backward of the augmented loss brings their part
    inject(…)          parameter-only blocks: added to .grad after backward, once for each step

Both parts have one weight w, at the whole vector of all blocks.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torch_powalm import batch, sharding
from torch_powalm.blocks import BatchValue
from torch_powalm.epoch import Epoch
from torch_powalm.functional import total_norm
from torch_powalm.injection import add_to_grad, check_ranks, check_reach, not_finite, vjp
from torch_powalm.lagrangian import Lagrangian
from torch_powalm.prox import Proximable
from torch_powalm.ranks import Ranks
from torch_powalm.result import TrainingResiduals
from torch_powalm.vector import BlockVector


class AugmentedGradient:
    """The gradient of L_β in .grad, and what of it is there already.

    Args:
        lagrangian: blocks and weights.
        epoch: follows the norm of the gradient.
        ranks: the processes whose gradients are averaged.
    """

    def __init__(self, lagrangian: Lagrangian, epoch: Epoch, ranks: Ranks) -> None:
        self.lagrangian, self.epoch, self.ranks = lagrangian, epoch, ranks
        self.window = batch.Window()
        self.checked = False  # every block has been seen to reach a parameter
        self.injected: Tensor | None = None  # a .grad that holds the parameter-only blocks' part

    def augment(
        self,
        loss: Tensor,
        values: Mapping[str, BatchValue],
        strict: Mapping[str, BatchValue] | None,
        samples: float,
        window: Sequence[Mapping[str, BatchValue]] | None,
    ) -> Tensor:
        """The loss, with a gradient that has the batch blocks' part; see the optimizer's."""
        vector = self.lagrangian.ready()
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(f"loss must be a scalar tensor, got {got}")
        proxy, reported, whole, parts = batch.read(vector.batch, values, strict, samples, window)
        with_graph = [t.total.requires_grad for t in proxy.values()]
        if not torch.is_grad_enabled() or not (loss.requires_grad or any(with_graph)):
            return loss  # validation: nothing is remembered
        if not all(with_graph):
            name = list(proxy)[with_graph.index(False)]
            raise ValueError(f"constraint {name!r} must have a gradient, got a constant")
        # Without gradients they have been cleared by model.zero_grad(), or FSDP2 still keeps them
        # to itself (set_requires_gradient_sync(False), for accumulation).
        params = self.lagrangian.params
        if self.window.has_done and not vector.sharded and all(p.grad is None for p in params):
            self.forget()
        seen = proxy
        if self.ranks.size > 1:
            seen, reported, whole = self.ranks.sums(proxy, reported, whole, device=vector.device)
            parts *= self.ranks.size  # the mean over ranks of the gradients undoes it
        A_batch = vector.batch_values(proxy if whole is proxy else batch.completed(proxy, whole))
        static = None
        if vector.static:
            with torch.no_grad():
                static = vector.evaluate()
        w = self.lagrangian.weight(vector.join(static, A_batch))
        if reported is not seen:
            true = vector.join(static, vector.batch_values(reported))
            w = w if self.lagrangian.is_finite(true) else None
        if w is None:  # on_nonfinite="skip": the step will see a gradient of nan
            w = torch.full((sum(vector.lengths),), math.nan, device=vector.device)
        w = w[vector.static_size :] if vector.static else w
        call = self.window.add(seen, reported)
        augmented: Tensor = batch.Augment.apply(loss, A_batch, w * parts if parts > 1 else w, call)
        return augmented

    def inject(self, vector: BlockVector, params: Sequence[Tensor]) -> bool:
        """Add J_Aᵀ w of the parameter-only blocks to .grad, unless a constraint is not finite."""
        if not vector.static or self.injected is not None:
            return True
        if not self.checked:
            check_reach(vector, params)
            self.check_ranks()
            self.checked = True
        A_static, r = self.residual(vector)
        w = self.lagrangian.weight(r)
        if w is None or A_static is None:
            return False
        grads = vjp(A_static, params, w[: vector.static_size] if vector.batch else w)
        (sharding.add_to_shards if vector.sharded else add_to_grad)(params, grads)
        touched = (p.grad for p, grad in zip(params, grads, strict=True) if grad is not None)
        self.injected = next(touched, None)
        return True

    def inject_early(self) -> None:
        """Inject before the step, which then does not."""
        params = self.lagrangian.params
        if not any(p.grad is self.injected for p in params if p.grad is not None):
            self.injected = None  # the gradients have been cleared by model.zero_grad()
        self.inject(self.lagrangian.ready(), params)

    def is_finite(self, vector: BlockVector, params: Sequence[Tensor]) -> bool:
        """Check the whole gradient in .grad and follow its norm."""
        measure = sharding.total_norm if vector.sharded else total_norm
        now = measure([p.grad for p in params if p.grad is not None])
        if math.isfinite(now):
            self.epoch.follow(now)
            return True
        if self.lagrangian.on_nonfinite == "raise":
            name = not_finite(vector, params)
            what = f"gradient of constraint {name!r}" if name else "gradient of the loss"
            raise FloatingPointError(f"{what} must be finite, got nan or inf")
        return False

    def residual(self, vector: BlockVector) -> tuple[Tensor | None, Tensor]:
        """A of the parameter-only blocks with a graph, and the whole (A, B) of this step."""
        A_batch = vector.batch_values(self.window.proxy(vector.batch)) if vector.batch else None
        A_static = None
        if vector.static:
            with torch.enable_grad():
                A_static = vector.evaluate()
        return A_static, vector.join(A_static, A_batch)

    def norms(self, terms: Mapping[int, Proximable]) -> TrainingResiduals:
        """Norms of the gradient and of the constraints; `terms` are the g by id of parameter."""
        vector, params = self.lagrangian.ready(), self.lagrangian.params
        A_static, r = self.residual(vector)
        w = self.lagrangian.weight(r)
        if w is None:
            return TrainingResiduals(math.nan, math.nan)
        extra: list[Tensor | None] = [None] * len(params)
        if A_static is not None and self.injected is None:
            extra = vjp(A_static, params, w[: vector.static_size])
        parts = []
        for p, more in zip(params, extra, strict=True):
            grad = sharding.full(p.grad) if p.grad is not None else torch.zeros_like(p)
            if more is not None:
                grad = sharding.full(more) + grad
            whole = sharding.full(p)
            distance = terms[id(p)].distance(whole, grad) if id(p) in terms else total_norm([grad])
            parts.append(distance)
        primal = [v.norm for v in vector.violations(r).values()]
        return TrainingResiduals(math.hypot(*parts), math.hypot(*primal))

    def check_ranks(self) -> None:
        """Raise when a parameter-only block is not the same on all ranks."""
        if self.ranks.size > 1:
            check_ranks(self.lagrangian.ready(), self.ranks)

    def forget(self) -> None:
        """The gradients are being cleared: calls that have not been through backward remain."""
        self.window.forget_done()
        self.injected = None

    def clear(self) -> None:
        """The gradients have been stepped with, or given up."""
        self.window.clear()
        self.injected = None
