"""History: one row per multiplier update, as a table or a picture."""

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from torch_powalm.result import DualRecord
from torch_powalm.training.epoch_statistics import EpochStatistics
from torch_powalm.training.feasibility import Tolerance, check_tolerance, largest, tolerance_of

_FLOOR = 1e-8  # of the logarithmic axis, for blocks with violation 0


@dataclass(frozen=True)
class HistoryRow:
    """One multiplier update.

    Args:
        step: steps since the start.
        record: what `update_multipliers` returned.
        multipliers: norm of the multipliers after the update, by block.
        loss: mean of the losses logged since the last row; nan if there is none.
        entries: multipliers of the entries of blocks that are not large, by block.
        weights: mean of what multiplied their gradients in the steps before, multiplier and
            penalty, if there are constraints of the batch; else empty.
    """

    step: int
    record: DualRecord
    multipliers: Mapping[str, float]
    loss: float = math.nan
    entries: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    weights: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values by column."""
        record = self.record
        violations = {f"violation/{name}": v.max for name, v in record.violations.items()}
        return {
            "k": record.k,
            "step": self.step,
            "loss": self.loss,
            "primal_residual": record.primal_residual,
            "max_violation": largest(violations.values()),
            **violations,
            "beta": record.beta,
            "sigma": record.sigma,
            "y_norm": record.y_norm,
            **{f"y/{name}": y for name, y in self.multipliers.items()},
            "signals": "; ".join(record.signals),
        }


class History:
    """The multiplier updates of a training, in order; `print` shows a table.

    It is kept in memory and is not part of a checkpoint: after a resume it starts again.

    Args:
        epoch: the step counter of the optimizer.
    """

    def __init__(self, epoch: EpochStatistics) -> None:
        self.rows: list[HistoryRow] = []
        self._epoch = epoch
        self._loss_sum, self._losses = 0.0, 0  # since the last row

    def log_loss(self, loss: float | Tensor) -> None:
        """Log a loss, at every step or at an epoch's end; each row has the mean since the last."""
        value = float(loss.detach() if isinstance(loss, Tensor) else loss)
        if self.rows and self.rows[-1].step == self._epoch.total_steps and not self._losses:
            self.rows[-1] = replace(self.rows[-1], loss=value)
            return
        self._loss_sum += value
        self._losses += 1

    def add(
        self,
        record: DualRecord,
        multipliers: Mapping[str, float],
        entries: Mapping[str, tuple[float, ...]],
        weights: Mapping[str, tuple[float, ...]],
    ) -> None:
        """Add a row after an update."""
        loss = self._loss_sum / self._losses if self._losses else math.nan
        self._loss_sum, self._losses = 0.0, 0
        step = self._epoch.total_steps
        self.rows.append(HistoryRow(step, record, multipliers, loss, entries, weights))

    def is_fresh(self) -> bool:
        """Whether fewer than half as many steps as before the last update have followed it."""
        steps = [row.step for row in self.rows[-2:]]
        before = steps[-1] - (steps[0] if len(steps) == 2 else 0) if steps else 0
        return 2 * self._epoch.steps < before

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one dictionary of plain values per update."""
        return [row.to_dict() for row in self.rows]

    def to_dataframe(self) -> Any:
        """Return a pandas.DataFrame with one row per update; needs pandas."""
        return import_module("pandas").DataFrame(self.to_dicts())

    def to_csv(self, path: str | Path) -> None:
        """Write one line per update."""
        rows = self.to_dicts()
        columns = list(dict.fromkeys(name for row in rows for name in row))
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)

    def plot(self, path: str | Path | None = None, tolerance: Tolerance | None = None) -> Any:
        """Draw violations, multipliers and the logged loss against steps; needs matplotlib.

        Args:
            path: image to write; None to show the figure with `matplotlib.pyplot.show()`.
            tolerance: drawn as dashed lines: a number, or numbers by block.

        Returns:
            The figure.
        """
        import matplotlib.pyplot as plt

        names = list(dict.fromkeys(name for row in self.rows for name in row.record.violations))
        if tolerance is not None:
            check_tolerance(tolerance, names)
        losses = [(row.step, row.loss) for row in self.rows if not math.isnan(row.loss)]
        panels = 3 if losses else 2
        figure, axes = plt.subplots(panels, sharex=True, figsize=(6, 2 * panels + 1))
        figure.set_layout_engine("constrained")
        for i, name in enumerate(names):
            self._draw_block(axes, name, f"C{i % 10}", tolerance)
        axes[0].set_yscale("log")
        axes[0].set_ylabel("largest violation")
        axes[1].set_ylabel("norm of multipliers")
        if losses:
            axes[2].plot(*zip(*losses, strict=True), color="black")
            axes[2].set_ylabel("loss")
        axes[-1].set_xlabel("steps")
        if names:
            axes[0].legend(frameon=False, fontsize="small")
        if path is not None:
            figure.savefig(path, dpi=120)
            plt.close(figure)
        return figure

    def _draw_block(
        self, axes: Any, name: str, color: str, tolerance: Tolerance | None = None
    ) -> None:
        rows = [row for row in self.rows if name in row.record.violations]
        steps = [row.step for row in rows]
        violations = [max(row.record.violations[name].max, _FLOOR) for row in rows]
        axes[0].plot(steps, violations, color=color, label=name)
        axes[1].plot(steps, [row.multipliers.get(name, math.nan) for row in rows], color=color)
        bound = tolerance_of(name, tolerance, 0.0)
        if bound > 0:
            axes[0].axhline(bound, color=color, linestyle="--", linewidth=0.8)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[HistoryRow]:
        return iter(self.rows)

    def __getitem__(self, index: int) -> HistoryRow:
        return self.rows[index]

    def __str__(self) -> str:
        return "\n".join(str(row.record) for row in self.rows) or "no update yet"
