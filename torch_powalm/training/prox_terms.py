"""Convex terms g of single parameters; their prox is applied after every step of the base."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_powalm.prox import Proximable
from torch_powalm.training.distributed.sharded_tensors import as_shard, full


class ProxTerms(dict[Tensor, Proximable]):
    """Convex terms by parameter.

    Args:
        terms: the terms; keys are parameters of the base.
        base: an optimizer with a learning rate.
    """

    def __init__(self, terms: Mapping[Tensor, Proximable], base: Optimizer) -> None:
        known = {id(p) for group in base.param_groups for p in group["params"]}
        for p in terms:
            if id(p) not in known:
                raise ValueError(f"prox must have parameters of base as keys, got {p!r}")
        if terms and any("lr" not in group for group in base.param_groups):
            raise ValueError("prox must come with a base that has a learning rate, got none")
        super().__init__(terms)
        self.base = base

    @torch.no_grad()
    def apply(self) -> None:
        """Replace every parameter by its prox, with the learning rate of its group as step size."""
        groups = self.base.param_groups
        lr = {id(p): float(group["lr"]) for group in groups for p in group["params"]}
        for p, g in self.items():
            p.copy_(as_shard(g.prox(full(p), lr[id(p)]), p))
