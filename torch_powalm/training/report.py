"""ConstraintReport: where every constraint of a training stands, as a table."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from torch_powalm.functional import norm, violation
from torch_powalm.training.block import Block
from torch_powalm.training.feasibility import Tolerance, check_tolerance, tolerance_of
from torch_powalm.training.indexed.indexed_multipliers import IndexedMultipliers
from torch_powalm.training.indexed.indexed_summary import described
from torch_powalm.training.monitor import Monitor
from torch_powalm.training.on_device.transfer import to_host
from torch_powalm.training.prices import UPDATES, prices

_NEGLIGIBLE = 1e-3  # multiplier of an inactive block, relative to the force of one tolerance
_COLUMNS = ("block", "status", "violation", "entry", "tolerance", "multiplier", "price")
_SHOWN = 10  # entries listed by number


@dataclass(frozen=True)
class BlockReport:
    """One block; violation, multiplier and price are in the units of the constraint and the loss.

    Args:
        name: name of the block.
        status: "met", "violated", "inactive" (met, and without influence on the training),
            "conflicting" (violated, and in contradiction to another constraint), or "not yet"
            (never seen, or the units are still being measured).
        violation: largest entry of |A(x)| or max(B(x), 0); nan if never seen.
        entry: index of this entry in the flattened block.
        tolerance: largest violation that counts as met.
        multiplier: norm of the block's multipliers.
        price: the largest of the block's `prices`: one unit less of that bound costs about this
            much loss. nan if it is not known before the next update.
        never_seen: indices of the entries that no batch has had a value for.
        quantiles: of the violation over the entries of an indexed block; None for other blocks.
        worst: indices of the largest violations of an indexed block.
    """

    name: str
    status: str
    violation: float
    entry: int | None
    tolerance: float
    multiplier: float
    price: float
    never_seen: tuple[int, ...] = ()
    quantiles: Mapping[float, float] | None = None
    worst: tuple[int, ...] = ()


@dataclass(frozen=True)
class ConstraintReport:
    """Where every block stands; `print` shows a table, and `report["name"]` is one block."""

    blocks: tuple[BlockReport, ...]

    @property
    def feasible(self) -> bool:
        """Whether every block is met."""
        return all(block.status in ("met", "inactive") for block in self.blocks)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return plain values by block."""
        return {b.name: {k: v for k, v in asdict(b).items() if k != "name"} for b in self.blocks}

    def __getitem__(self, name: str) -> BlockReport:
        for block in self.blocks:
            if block.name == name:
                return block
        raise KeyError(f"report has no constraint {name!r}")

    def __iter__(self) -> Iterator[BlockReport]:
        return iter(self.blocks)

    def __str__(self) -> str:
        rows = [_COLUMNS, *map(_cells, self.blocks)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        for block in self.blocks:
            if block.quantiles is not None:
                half, most, nearly = (f"{q:.3g}" for q in block.quantiles.values())
                worst = "; worst entries " + ", ".join(map(str, block.worst)) if block.worst else ""
                lines.append(
                    f"{block.name}: half of the entries violate it by at most {half}, 90 % by "
                    f"{most}, 99 % by {nearly}{worst}"
                )
            if block.never_seen:
                shown = ", ".join(map(str, block.never_seen[:_SHOWN]))
                more = " …" if len(block.never_seen) > _SHOWN else ""
                lines.append(f"{block.name}: no batch so far had entries {shown}{more}")
        return "\n".join(lines)


@torch.no_grad()
def make_report(monitor: Monitor, tolerance: Tolerance | None) -> ConstraintReport:
    """Return the report of the blocks of one optimizer."""
    blocks = monitor.blocks.ready()
    if tolerance is not None:
        check_tolerance(tolerance, blocks.names)
    values = _values(monitor)
    started = monitor.dual.started and not monitor.units.measuring
    y = blocks.split(monitor.dual.y) if started else {}
    defaults = monitor.signals.default_tolerances()
    reports = []
    for block in (*blocks.static, *blocks.batch):
        bound = tolerance_of(block.name, tolerance, defaults[block.name])
        reports.append(_block(monitor, block, values.get(block.name), y.get(block.name), bound))
    for part in blocks.indexed:
        default = monitor.signals.default_of_indexed(part.name, part.size)
        bound = tolerance_of(part.name, tolerance, default)
        reports.append(_indexed(monitor, part, bound, started))
    return ConstraintReport(tuple(sorted(reports, key=lambda b: blocks.names.index(b.name))))


def _values(monitor: Monitor) -> dict[str, Tensor]:
    """Return the current value of every block that has been seen.

    Soon after an update, the average of a few batches would be noise: the value that the update saw
    stays until half as many steps as before it have been made.
    """
    blocks, constraints = monitor.blocks, monitor.constraints
    sums = constraints.epoch_sums(blocks.sizes)
    latest = constraints.latest_values(blocks.sizes)
    current = {b.name: sums[b.name].value(b) for b in blocks.batch if b.name in sums}
    values = current | latest if monitor.history.is_fresh() else latest | current
    return values | blocks.static_values()


def _block(
    monitor: Monitor, block: Block, value: Tensor | None, y: Tensor | None, tolerance: float
) -> BlockReport:
    size = monitor.blocks.sizes[block.name]
    seen = monitor.constraints.seen(block.name)
    missing = torch.zeros(size, dtype=torch.bool) if seen is None else ~seen
    never_seen = tuple(missing.nonzero().flatten().tolist())
    norm_y = price = 0.0
    if y is not None:
        norm_y, price = norm(y), _price(monitor, block.name, y)
    if value is None or len(never_seen) == size:
        unseen = tuple(range(size))
        return BlockReport(block.name, "not yet", math.nan, None, tolerance, norm_y, price, unseen)
    excess = violation(value, block.inequality).abs()
    excess = excess.masked_fill(missing.to(excess.device), -1.0)
    entry = int(excess.argmax())
    worst = float(excess[entry])
    status = _status(monitor, block, worst, y, tolerance, price)
    return BlockReport(block.name, status, worst, entry, tolerance, norm_y, price, never_seen)


def _price(monitor: Monitor, name: str, y: Tensor) -> float:
    rows = monitor.history.rows
    if rows and rows[-1].weights:
        return max((p.value for p in prices(rows, UPDATES)[name]), key=abs)
    if not rows and monitor.blocks.batch:
        return math.nan  # y alone may be 0 although the penalty pulls in some batches
    return float(y[y.abs().argmax()])


def _indexed(
    monitor: Monitor, part: IndexedMultipliers, tolerance: float, started: bool
) -> BlockReport:
    read = to_host(part.summary())
    found, norm_y, price = described(read, part.size), float(read[4]), float(read[5])
    entry = int(read[1][0]) if int(read[6]) else None
    status = "violated" if not found.max <= tolerance else "met"
    if status == "met" and price == 0 and part.inequality:
        status = "inactive"
    status = status if started and entry is not None else "not yet"
    numbers = found.max, entry, tolerance, norm_y, price, found.never_seen
    return BlockReport(part.name, status, *numbers, found.quantiles, found.worst)


def _status(
    monitor: Monitor,
    block: Block,
    worst: float,
    y: Tensor | None,
    tolerance: float,
    price: float,
) -> str:
    if y is None:
        return "not yet"
    if not worst <= tolerance:
        return "conflicting" if block.name in monitor.signals.conflicting else "violated"
    if not block.inequality:
        return "met"
    dual, scale = monitor.dual, 1.0
    if dual.scale is not None:
        scale = float(monitor.blocks.split(dual.scale)[block.name].max())
    force = dual.beta * scale * (scale * tolerance) ** dual.nu
    pull = max(float(y.abs().max()), abs(price))  # the first if the price is nan
    return "inactive" if pull <= _NEGLIGIBLE * force else "met"


def _cells(block: BlockReport) -> tuple[str, ...]:
    entry = "–" if block.entry is None else str(block.entry)
    numbers = (block.violation, block.tolerance, block.multiplier, block.price)
    seen, tolerance, multiplier, price = (
        "–" if math.isnan(number) else f"{number:.3g}" for number in numbers
    )
    return block.name, block.status, seen, entry, tolerance, multiplier, price
