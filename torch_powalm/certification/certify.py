"""certify: what held-out data show about the constraints of a trained model."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from torch_powalm.certification.certificate import (
    FAILS,
    HOLDS,
    Certificate,
    CertifiedEntry,
    finite_or_none,
    verdict,
)
from torch_powalm.certification.evaluation_mode import check_evaluation_mode
from torch_powalm.certification.held_out_data import check_apart, check_once
from torch_powalm.certification.kinds import Mean, Rates
from torch_powalm.certification.quantity import Quantity
from torch_powalm.certification.ranks import shared_over_ranks
from torch_powalm.certification.simultaneous import holm_bounds
from torch_powalm.functional import violation
from torch_powalm.training.block import BatchValue, Block
from torch_powalm.training.distributed.sharded_tensors import full
from torch_powalm.training.feasibility import Tolerance, check_tolerance, tolerance_of
from torch_powalm.training.proxy_value import ProxyValue
from torch_powalm.training.registry import ConstraintRegistry

Measured = BatchValue | ProxyValue | list[torch.Tensor]  # values of one block in one batch
Measure = Callable[[Any], Mapping[str, Measured]]
Kinds = Mapping[str, Rates | Mean]


def certify(
    constraints: ConstraintRegistry,
    measure: Measure | None = None,
    loader: Iterable[Any] | None = None,
    confidence: float = 0.95,
    *,
    kinds: Kinds | None = None,
    tolerance: Tolerance = 0.0,
    model: nn.Module | None = None,
    seen: Sequence[Any] = (),
    stationarity: Mapping[str, float] | None = None,
) -> Certificate:
    """Bound every constraint on data that the model has not seen.

    The held-out samples must be independent draws of the data to come, and must not have been used
    for training, for choosing the model, or for choosing margins. Then, with probability at least
    `confidence`, every constraint with the verdict "holds" is met on the whole population, and all
    upper bounds are right. Functions of the parameters are evaluated, without uncertainty.

    Args:
        constraints: the registry of the training.
        measure: maps a batch to values of the batch blocks by name, as `Rates` and `Mean` read
            them. It runs without gradients.
        loader: batches of held-out data.
        confidence: of all bounds together, in (0, 1).
        kinds: what the values of each batch block are, by name.
        tolerance: violation that counts as met, ≥ 0; a number, or by name. An equality of the batch
            needs one.
        model: the model, which must be in evaluation mode; None to look for it in `measure`.
        seen: loaders whose samples must not be in `loader`, such as that of the training. The data
            of `margin="auto"` are always among them.
        stationarity: what `stationarity` returned, to be kept with the certificate.

    Example:
        certificate = certify(constraints, measure, held_out, kinds={"missed": Rates()})
    """
    if not isinstance(constraints, ConstraintRegistry):
        got = type(constraints).__name__
        raise TypeError(f"constraints must be a ConstraintRegistry, got {got}")
    if not constraints.blocks:
        raise ValueError("constraints must have at least one block, got none")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be in (0, 1), got {confidence!r}")
    check_tolerance(tolerance, constraints.blocks)
    limits = {name: tolerance_of(name, tolerance, 0.0) for name in constraints.blocks}
    found: dict[str, list[Quantity]] = {}
    if any(block.fn is None for block in constraints.blocks.values()):
        others = [(f"seen[{i}]", other) for i, other in enumerate(seen)]
        others += [("the margins' held-out data", other) for other in constraints.margin_data]
        check_apart("loader", loader, others)
        check_evaluation_mode(measure, model)
        found = read_quantities(constraints, measure, loader, kinds or {}, limits)
    return _judge(constraints, found, limits, confidence, stationarity)


def read_quantities(
    constraints: ConstraintRegistry,
    measure: Measure | None,
    loader: Iterable[Any] | None,
    kinds: Kinds,
    limits: Mapping[str, float],
) -> dict[str, list[Quantity]]:
    """Measure the batch blocks, and return what there is to bound, by block."""
    batch = [block for block in constraints.blocks.values() if block.fn is None]
    check_kinds(batch, kinds)
    check_once("loader", loader)
    for block in batch:
        if not block.inequality and not limits[block.name] > 0:
            raise ValueError(
                f"tolerance of {block.name!r} must be positive for an equality of the batch, "
                f"got {limits[block.name]!r}"
            )
    values = measured(batch, measure, loader)
    return {b.name: kinds[b.name].quantities(b, values[b.name], limits[b.name]) for b in batch}


def check_kinds(batch: Sequence[Block], kinds: Kinds) -> None:
    """Raise unless every batch block has a kind, and every kind a batch block."""
    names = [block.name for block in batch]
    for name, kind in kinds.items():
        if name not in names:
            raise KeyError(f"kinds has no batch constraint {name!r}")
        if not isinstance(kind, Rates | Mean):
            raise TypeError(f"kind of {name!r} must be Rates or Mean, got {type(kind).__name__}")
    for name in names:
        if name not in kinds:
            raise ValueError(f"kinds must have Rates(…) or Mean(…) for {name!r}, got none")


@torch.no_grad()
def measured(batch: Sequence[Block], measure: Any, loader: Any) -> dict[str, list[Any]]:
    """Return what `measure` returns for all batches, by block; of all ranks if they share data."""
    if not callable(measure):
        raise TypeError(f"measure must be a function of a batch, got {type(measure).__name__}")
    if not isinstance(loader, Iterable):
        raise TypeError(f"loader must be iterable, got {type(loader).__name__}")
    values: dict[str, list[Any]] = {block.name: [] for block in batch}
    for data in loader:
        found = measure(data)
        for name in found:
            if name not in values:
                raise KeyError(f"measure has no batch constraint {name!r}")
        for name, rows in values.items():
            if name not in found:
                raise KeyError(f"measure must return a value for {name!r}, got none")
            value = found[name]
            rows.append(value.strict if isinstance(value, ProxyValue) else value)
    values = shared_over_ranks(values, loader)
    if not all(values.values()):
        raise ValueError("loader must have at least one batch, got none")
    return values


def _judge(
    constraints: ConstraintRegistry,
    found: Mapping[str, list[Quantity]],
    limits: Mapping[str, float],
    confidence: float,
    stationarity: Mapping[str, float] | None,
) -> Certificate:
    flat = [q for quantities in found.values() for q in quantities]
    bounds, level = holm_bounds(flat, 1 - confidence)
    upper = iter(bounds)
    entries: list[CertifiedEntry] = []
    for name, block in constraints.blocks.items():
        if block.fn is not None:
            entries.append(_exact(block, limits[name]))
            continue
        for i, q in enumerate(found[name]):
            bound = next(upper)
            said = verdict(q.estimate, bound, q.asked, q.out_of_reach(level))
            enough = finite_or_none(q.enough(level)) if said not in (HOLDS, FAILS) else None
            row = (name, i, q.estimate, bound, q.asked, said, q.samples, enough)
            entries.append(CertifiedEntry(*row))
    return Certificate(tuple(entries), confidence, dict(stationarity or {}))


@torch.no_grad()
def _exact(block: Block, tolerance: float) -> CertifiedEntry:
    """Evaluate a function of the parameters."""
    value = block.flat(full(block.evaluate()), block.size)
    if not bool(value.isfinite().all()):
        raise ValueError(f"constraint {block.name!r} must be finite, got nan or inf")
    worst = float(value.max() if block.inequality else violation(value, False).abs().max())
    said = verdict(worst, worst, tolerance, out_of_reach=False)
    return CertifiedEntry(block.name, None, worst, worst, tolerance, said, None, None)
