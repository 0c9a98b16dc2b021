"""stationarity: how far a trained model is from a constrained optimum, on all training data."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from torch_powalm.functional import norm, violation
from torch_powalm.training.block import BatchValue, Tally, tally
from torch_powalm.training.optimizer import PowerALMOptimizer

Evaluate = Callable[[Any], tuple[Tensor, Mapping[str, BatchValue]]]


def stationarity(
    optimizer: PowerALMOptimizer, evaluate: Evaluate, loader: Iterable[Any]
) -> dict[str, float]:
    """Return the residuals of a constrained optimum, with the current multipliers y.

        gradient          ‖∇f(x) + J_A(x)ᵀ y_A + J_B(x)ᵀ y_B‖
        loss_gradient     ‖∇f(x)‖, to compare it with
        violation         ‖(A(x), max(B(x), 0))‖
        complementarity   max |y_B · B(x)|

    f is the mean loss over all batches, and constraints are those of all batches together. A block
    with a smooth proxy is judged by the proxy, which has a gradient; a margin is part of B. The
    data are read twice.

    Args:
        optimizer: the optimizer at the end of a training.
        evaluate: maps a batch to its loss and the values of the batch blocks by name, as `augment`
            takes them. Put the model in evaluation mode before.
        loader: the training data, which can be read again.
    """
    if not isinstance(optimizer, PowerALMOptimizer):
        got = type(optimizer).__name__
        raise TypeError(f"optimizer must be a PowerALMOptimizer, got {got}")
    if not callable(evaluate):
        raise TypeError(f"evaluate must be a function of a batch, got {type(evaluate).__name__}")
    if hasattr(loader, "__next__") or not hasattr(loader, "__iter__"):
        raise TypeError(f"loader must be iterable more than once, got {type(loader).__name__}")
    blocks, y = optimizer.blocks.ready(), optimizer.multipliers()
    params = [p for p in optimizer.params if p.requires_grad]
    sums, batches = _sums(optimizer, evaluate, loader)
    slopes = {block.name: _slope(block, sums[block.name], y) for block in blocks.batch}
    loss_grads, grads = ([torch.zeros_like(p) for p in params] for _ in range(2))
    for data in loader:
        loss, found = evaluate(data)
        pull = torch.zeros((), device=blocks.device)
        for block in blocks.batch:
            part = tally(block, found[block.name], 1.0).total
            pull = pull + (slopes[block.name] * part).sum()
        _add(loss_grads, loss / batches, params, keep=True)
        _add(grads, pull, params)
    static = blocks.static_values()
    for name, value in static.items():
        _add(grads, (y[name] * value).sum(), params)
    pieces = {n: v.detach() for n, v in static.items()}
    pieces |= {block.name: sums[block.name].value(block) for block in blocks.batch}
    joined = torch.cat([pieces[name] for name in blocks.sizes])
    r = blocks.margin.in_updates(joined, blocks.sizes)
    products = torch.cat([y[name] for name in blocks.sizes]) * r
    inactive = torch.zeros_like(r, dtype=torch.bool)
    mask = inactive if blocks.inequality is None else blocks.inequality
    total = [g + f for g, f in zip(grads, loss_grads, strict=True)]
    return {
        "gradient": norm(*total),
        "loss_gradient": norm(*loss_grads),
        "violation": norm(violation(r, blocks.inequality)),
        "complementarity": float(products[mask].abs().max()) if bool(mask.any()) else 0.0,
    }


@torch.no_grad()
def _sums(
    optimizer: PowerALMOptimizer, evaluate: Evaluate, loader: Iterable[Any]
) -> tuple[dict[str, Tally], int]:
    """Return the sums of the batch blocks over all batches, and the number of batches."""
    sums: dict[str, Tally] = {}
    batches = 0
    for data in loader:
        _, found = evaluate(data)
        for block in optimizer.blocks.batch:
            if block.name not in found:
                raise KeyError(f"evaluate must return a value for {block.name!r}, got none")
            new = tally(block, found[block.name], 1.0).snapshot()
            sums[block.name] = sums[block.name].plus(new) if block.name in sums else new
        batches += 1
    if not batches:
        raise ValueError("loader must have at least one batch, got none")
    return sums, batches


def _slope(block: Any, sums: Tally, y: Mapping[str, Tensor]) -> Tensor:
    """Return the derivative of ⟨y, value⟩ with respect to the sums of a block."""
    with torch.enable_grad():
        total = sums.total.clone().requires_grad_()
        value = Tally(total, sums.weight).value(block)
        (slope,) = torch.autograd.grad((y[block.name].to(value) * value).sum(), total)
    return slope


def _add(grads: list[Tensor], value: Tensor, params: list[Tensor], keep: bool = False) -> None:
    """Add the gradient of a value to gradients; keep its graph if another value shares it."""
    if value.requires_grad:
        found = torch.autograd.grad(value, params, retain_graph=keep, allow_unused=True)
        for grad, new in zip(grads, found, strict=True):
            if new is not None:
                grad.add_(new)
