"""Convex terms g of single parameters; their prox is applied after every step of the base.

A step of the base is x ← x − D m with a direction m. With plain SGD, D is the learning rate, and
the prox of step size lr belongs to the same step. Adam divides the learning rate by the size of the
gradient, entry by entry, so the prox must do so too: prox with the steps D. With the learning rate
alone, L1 would be weaker than the loss by the size of the gradient, and make no zeros.

Where the gradient is tiny, D is huge, and a network would be 0 before it has learned anything. So
the prox moves an entry by at most 1.1 lr, a little more than Adam, which moves it by about lr at
most: g still wins where it should, and the fixed points remain those of loss + g.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_powalm.prox import Elementwise, Proximable
from torch_powalm.training.distributed.sharded_tensors import as_shard, full

_ADAM = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam)
_SCALING = (*_ADAM, torch.optim.RMSprop, torch.optim.Adagrad)  # bases whose D is known


LONGEST = 1.1  # longest move by the prox relative to lr, for bases that scale their steps


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
        centered = any(group.get("centered") for group in base.param_groups)
        self._scaling = isinstance(base, _SCALING) and not centered
        self._warn()

    @torch.no_grad()
    def apply(self) -> None:
        """Replace every parameter by its prox, in the metric of the step of the base."""
        groups = {id(p): group for group in self.base.param_groups for p in group["params"]}
        for p, g in self.items():
            group, x = groups[id(p)], full(p)
            lr = float(group["lr"])
            if not g.is_indicator and _is_elementwise(g) and self._scaling:
                steps: Any = full(_steps(self.base, p, group))
                x = x + (g.prox(x, steps) - x).clamp_(-LONGEST * lr, LONGEST * lr)
            else:
                x = g.prox(x, lr)
            p.copy_(as_shard(x, p))

    def _warn(self) -> None:
        """Warn about terms whose prox does not fit the steps of the base."""
        if isinstance(self.base, torch.optim.SGD):
            return
        fits = self._scaling
        wrong = {
            type(g).__name__
            for g in self.values()
            if not g.is_indicator and not (fits and _is_elementwise(g))
        }
        if wrong:
            names = ", ".join(sorted(wrong))
            warnings.warn(
                f"prox of {names} uses the learning rate as its step size, but the steps of "
                f"{type(self.base).__name__} have another length: raise the weight, or use SGD"
                + ("" if fits else ", Adam, AdamW, NAdam, RMSprop or Adagrad with L1"),
                stacklevel=4,
            )


def _is_elementwise(g: Proximable) -> bool:
    return isinstance(g, Elementwise) and g.is_elementwise


def _steps(base: Optimizer, p: Tensor, group: Mapping[str, Any]) -> Any:
    """Return D for the entries of p."""
    state, lr = base.state.get(p, {}), group["lr"]
    if not state:
        return torch.full_like(p, float(lr))
    if isinstance(base, torch.optim.Adagrad):
        lr = lr / (1 + (state["step"] - 1) * group["lr_decay"])
        square = state["sum"]
    elif isinstance(base, torch.optim.RMSprop):
        square = state["square_avg"]
    else:
        square = state["max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"]
        square = square / (1 - group["betas"][1] ** state["step"])
    return lr / (square.sqrt() + group["eps"])
