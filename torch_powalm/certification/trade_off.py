"""trade_off: loss against bound, from trainings that start where the last one ended."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch_powalm.certification.certificate import Certificate


class Trained(NamedTuple):
    """What a training for one bound returns.

    Args:
        loss: the loss, best on data that were not trained on.
        state: what the next training starts from, such as `model.state_dict()`.
        certificate: of the constraints, if there is one.
        price: multiplier of the bound, if known.
    """

    loss: float
    state: Any
    certificate: Certificate | None = None
    price: float = math.nan


@dataclass(frozen=True)
class TradeOffPoint:
    """One bound of a trade-off curve.

    Args:
        bound: the bound asked for.
        loss: the loss of the training.
        certified: the smallest bound that the certificate shows: bound + excess.
        holds: whether every constraint holds with its confidence; None without a certificate.
        price: multiplier of the bound: what one unit less would cost in loss.
    """

    bound: float
    loss: float
    certified: float
    holds: bool | None
    price: float


@dataclass(frozen=True)
class TradeOff:
    """Loss against bound; `print` shows a table."""

    points: tuple[TradeOffPoint, ...]

    def slopes(self) -> list[float]:
        """Return the loss per unit of bound between neighbors: what `price` is to predict."""
        pairs = zip(self.points[:-1], self.points[1:], strict=True)
        return [(b.loss - a.loss) / (a.bound - b.bound) for a, b in pairs]

    def save(self, path: str | Path) -> None:
        """Write the points as JSON."""
        rows = [
            {
                k: None if isinstance(v, float) and not math.isfinite(v) else v
                for k, v in row.items()
            }
            for row in map(asdict, self.points)
        ]
        Path(path).write_text(json.dumps({"points": rows}, indent=1) + "\n")

    def plot(self, path: str | Path | None = None, name: str = "bound") -> Any:
        """Draw loss against the bound asked for and the certified one; save or return the figure.

        Args:
            path: file to write; None to only return the figure.
            name: label of the axis.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5.6, 3.6), layout="constrained")
        axes = figure.subplots()
        losses = [p.loss for p in self.points]
        axes.plot([p.bound for p in self.points], losses, "o-", color="tab:blue", label="asked for")
        for holds, color in ((True, "tab:green"), (False, "tab:red")):
            found = [p for p in self.points if p.holds is holds]
            label = f"certified: {'holds' if holds else 'does not hold'}"
            if found:
                axes.plot(
                    [p.certified for p in found],
                    [p.loss for p in found],
                    "s",
                    color=color,
                    label=label,
                )
        axes.set_xlabel(name)
        axes.set_ylabel("loss")
        axes.legend(frameon=False)
        if path is not None:
            figure.savefig(path, dpi=120)
        return figure

    def __iter__(self) -> Iterator[TradeOffPoint]:
        return iter(self.points)

    def __str__(self) -> str:
        lines = ["bound       loss        certified   holds  price"]
        for p in self.points:
            holds = {None: "–", True: "yes", False: "no"}[p.holds]
            numbers = [f"{x:<10.4g}" for x in (p.bound, p.loss, p.certified)]
            lines.append("  ".join([*numbers, f"{holds:5}", f"{p.price:.4g}"]))
        return "\n".join(lines)


def trade_off(
    train: Callable[[float, Any, float], Trained],
    bounds: Sequence[float],
    confidence: float = 0.95,
) -> TradeOff:
    """Train for each bound, from the loosest to the strictest, each from the state of the last.

    Args:
        train: maps (bound, state, confidence) to a `Trained`; state is None at first. The
            confidence is the one that its certificate must have, so that the certificates of all
            points hold together with the confidence asked for.
        bounds: the bounds; a smaller one is stricter.
        confidence: of all certificates together, in (0, 1).

    Example:
        curve = trade_off(train, [0.2, 0.1, 0.05])
        curve.plot("trade_off.png")
    """
    if not callable(train):
        raise TypeError(f"train must be a function, got {type(train).__name__}")
    if len(set(bounds)) < max(1, len(bounds)) or not all(map(math.isfinite, bounds)):
        raise ValueError(f"bounds must be different finite numbers, got {list(bounds)!r}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be in (0, 1), got {confidence!r}")
    each, state, points = 1 - (1 - confidence) / len(bounds), None, []
    for bound in sorted(bounds, reverse=True):
        found = train(bound, state, each)
        if not isinstance(found, Trained):
            raise TypeError(f"train must return a Trained, got {type(found).__name__}")
        shown, holds = math.nan, None
        if found.certificate is not None:
            shown, holds = bound + found.certificate.excess, found.certificate.holds
        points.append(TradeOffPoint(bound, float(found.loss), shown, holds, float(found.price)))
        state = found.state
    return TradeOff(tuple(points))
