"""Distance to a reference model: how far a fine-tuned model may move away from it."""

import copy
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from torch_powalm.training.registry import ConstraintRegistry
from torch_powalm.zoo.zoo_entry import Entry, check_number

Model = TypeVar("Model", bound=nn.Module)


def frozen_copy(model: Model) -> Model:
    """Return a copy of a model as a reference: in evaluation mode, without gradients."""
    return copy.deepcopy(model).eval().requires_grad_(False)


def target_kl(
    constraints: ConstraintRegistry, name: str, reference: nn.Module, *, bound: float
) -> Entry:
    """Bound the divergence of the model's predictions from those of a reference, in nats.

        mean over samples of KL(model ‖ reference) = Σ_c p_c (log p_c − log q_c) ≤ bound

    Args:
        constraints: the registry.
        name: name of the block.
        reference: model in evaluation mode, as `frozen_copy` returns it.
        bound: largest mean divergence, ≥ 0.

    Returns:
        An entry to call as `kl(logits, inputs)`, or with the keyword arguments of the reference;
        `mask` selects samples, such as the tokens that are not padding. The last axis of the logits
        is that of the classes.
    """
    return _divergence(constraints, name, reference, bound, forward=True)


def forgetting(
    constraints: ConstraintRegistry, name: str, reference: nn.Module, *, bound: float
) -> Entry:
    """Bound KL(reference ‖ model), which punishes what the model no longer predicts.

    Arguments and call are those of `target_kl`, with logits and inputs of the old data.
    """
    return _divergence(constraints, name, reference, bound, forward=False)


def output_distance(
    constraints: ConstraintRegistry, name: str, reference: nn.Module, *, bound: float
) -> Entry:
    """Bound the distance of the outputs from those of a reference, relative to their size.

        ‖f(x) − reference(x)‖ ≤ bound · ‖reference(x)‖   over all samples

    Args:
        constraints: the registry.
        name: name of the block.
        reference: model in evaluation mode, as `frozen_copy` returns it.
        bound: largest relative distance, ≥ 0.

    Returns:
        An entry to call as `distance(outputs, inputs)`.
    """
    entry = feature_distance(constraints, name, bound=bound)
    _check_reference(name, reference)

    def measure(outputs: Tensor, *inputs: Any, **named: Any) -> Any:
        return entry(outputs, _of_reference(name, reference, inputs, named))

    return Entry(name, measure)


def feature_distance(constraints: ConstraintRegistry, name: str, *, bound: float) -> Entry:
    """Bound the distance of features from those of a reference, relative to their size.

    Args:
        constraints: the registry.
        name: name of the block.
        bound: largest relative distance, ≥ 0.

    Returns:
        An entry to call as `distance(features, reference_features)`.
    """
    check_number(f"bound of {name!r}", bound, 0)
    constraints.inequality(name, size=1, from_statistics=partial(_relative, bound=bound))

    def measure(features: Tensor, reference_features: Tensor) -> Tensor:
        if features.shape != reference_features.shape:
            raise ValueError(
                f"features of {name!r} must have the shape {tuple(reference_features.shape)} of "
                f"the reference's, got {tuple(features.shape)}"
            )
        goal = reference_features.detach()
        moved = (features - goal).float() if features.element_size() < 4 else features - goal
        return torch.stack([moved.square().sum(), goal.to(moved).square().sum()])

    return Entry(name, measure)


def _divergence(
    constraints: ConstraintRegistry, name: str, reference: nn.Module, bound: float, forward: bool
) -> Entry:
    check_number(f"bound of {name!r}", bound, 0)
    _check_reference(name, reference)
    constraints.inequality(name, size=1)

    def measure(
        logits: Tensor, *inputs: Any, mask: Tensor | None = None, **named: Any
    ) -> tuple[Tensor, Tensor]:
        goal = _of_reference(name, reference, inputs, named)
        if goal.shape != logits.shape:
            raise ValueError(
                f"logits of {name!r} must have the shape {tuple(goal.shape)} of the reference's, "
                f"got {tuple(logits.shape)}"
            )
        if mask is not None:
            logits, goal = logits[mask], goal[mask]
        wide = logits.float() if logits.element_size() < 4 else logits
        p, q = wide.log_softmax(-1), goal.to(wide).log_softmax(-1)
        each = (p.exp() * (p - q) if forward else q.exp() * (q - p)).sum(-1)
        count = each.new_tensor([float(each.numel())])
        return each.sum().reshape(1) / count.clamp(min=1) - bound, count

    return Entry(name, measure)


def _check_reference(name: str, reference: object) -> None:
    if not isinstance(reference, nn.Module):
        got = type(reference).__name__
        raise TypeError(f"reference of {name!r} must be a torch.nn.Module, got {got}")
    if reference.training:
        raise ValueError(
            f"reference of {name!r} must be in evaluation mode (call .eval()), got training mode"
        )


@torch.no_grad()
def _of_reference(name: str, reference: nn.Module, inputs: Any, named: Any) -> Tensor:
    _check_reference(name, reference)
    if not inputs and not named:
        raise ValueError(f"inputs of {name!r} must be given for the reference, got none")
    outputs = reference(*inputs, **named)
    found: Tensor = getattr(outputs, "logits", outputs)
    return found


def _relative(statistics: Tensor, bound: float) -> Tensor:
    ratio = statistics[:1] / statistics[1:]
    positive = ratio > 0  # the derivative of the root is infinite at 0
    return torch.where(positive, torch.where(positive, ratio, 1.0).sqrt(), 0.0 * ratio) - bound
