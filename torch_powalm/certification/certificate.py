"""Certificate: what held-out data show about each constraint, as a table, a file and a figure."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "not enough data"
_COLUMNS = ("constraint", "estimate", "upper bound", "asked", "verdict", "samples", "enough")
_SHOWN = 20  # entries of a block that the table lists
_FORMAT = 1


@dataclass(frozen=True)
class CertifiedEntry:
    """One entry of a block.

    Args:
        name: name of the block.
        entry: index of the entry; for an equality of the batch, its upper and lower side follow
            each other. None for a function of the parameters, which stands for its worst entry.
        estimate: value on the held-out data.
        upper: simultaneous upper bound of the value on unseen data.
        asked: the largest value allowed.
        verdict: "holds", "does not hold" (the estimate itself is above what is asked for), or
            "not enough data".
        samples: number of held-out samples behind the estimate; None for a function.
        enough: about how many samples would be enough at this estimate, or, if so few samples
            show nothing whatever their values are, at the best possible one; None if no number is.
    """

    name: str
    entry: int | None
    estimate: float
    upper: float
    asked: float
    verdict: str
    samples: int | None
    enough: int | None

    @property
    def label(self) -> str:
        """Name of the block and index of the entry."""
        return self.name if self.entry is None else f"{self.name}[{self.entry}]"


@dataclass(frozen=True)
class Certificate:
    """Verdicts on all constraints, which hold together with the stated confidence.

    `print` shows a table, and `certificate["name"]` has the entries of one block.

    Args:
        entries: all entries of all blocks.
        confidence: probability, over the draw of the held-out data, that no verdict "holds" is
            wrong and that all upper bounds are right.
        stationarity: how far the model is from a constrained optimum, if it was measured.
    """

    entries: tuple[CertifiedEntry, ...]
    confidence: float
    stationarity: dict[str, float] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether every constraint holds."""
        return all(e.verdict == HOLDS for e in self.entries)

    @property
    def excess(self) -> float:
        """The largest upper bound minus what is asked for; at most 0 if every constraint holds."""
        return max(e.upper - e.asked for e in self.entries)

    def save(self, path: str | Path) -> None:
        """Write the certificate as JSON."""
        content = {"format": _FORMAT, **asdict(self)}
        for entry in content["entries"]:  # JSON has no number for a bound that is infinite
            entry.update({k: str(v) for k, v in entry.items() if _is_infinite(v)})
        Path(path).write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> "Certificate":
        """Read what `save` wrote."""
        content = json.loads(Path(path).read_text())
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(f"path must be a certificate of format {_FORMAT}, got {str(path)!r}")
        for entry in content["entries"]:
            entry.update({k: float(entry[k]) for k in ("estimate", "upper", "asked")})
        entries = tuple(CertifiedEntry(**entry) for entry in content["entries"])
        return cls(entries, content["confidence"], content["stationarity"])

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw estimate, upper bound and what is asked for; save the figure, or return it."""
        from matplotlib.figure import Figure

        colors = {HOLDS: "tab:green", FAILS: "tab:red", UNKNOWN: "tab:orange"}
        figure = Figure(figsize=(6.4, 1.0 + 0.35 * len(self.entries)), layout="constrained")
        axes = figure.subplots()
        for i, e in enumerate(self.entries):
            axes.plot([e.estimate, e.upper], [i, i], color=colors[e.verdict], linewidth=3)
            axes.plot(e.estimate, i, "o", color=colors[e.verdict])
            axes.plot([e.asked, e.asked], [i - 0.35, i + 0.35], color="black")
        for verdict, color in colors.items():
            axes.plot([], [], "o-", color=color, linewidth=3, label=verdict)
        axes.plot([], [], color="black", label="asked for")
        axes.set_yticks(range(len(self.entries)), [e.label for e in self.entries])
        axes.invert_yaxis()
        axes.set_xlabel(f"estimate, and upper bound at {self.confidence:.0%} confidence")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        if path is not None:
            figure.savefig(path)
        return figure

    def __getitem__(self, name: str) -> tuple[CertifiedEntry, ...]:
        found = tuple(e for e in self.entries if e.name == name)
        if not found:
            raise KeyError(f"certificate has no constraint {name!r}")
        return found

    def __iter__(self) -> Iterator[CertifiedEntry]:
        return iter(self.entries)

    def __str__(self) -> str:
        rows = [_COLUMNS, *map(_cells, self._shown())]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        total = "all constraints hold" if self.holds else "not all constraints hold"
        lines.append(f"{total}, at {self.confidence:.6g} simultaneous confidence")
        lines += [f"{name}: {value:.3g}" for name, value in self.stationarity.items()]
        return "\n".join(lines)

    def _shown(self) -> Iterator[CertifiedEntry]:
        """The entries of the table: of a long block only those nearest to what is asked for."""
        for name in dict.fromkeys(e.name for e in self.entries):
            yield from sorted(self[name], key=lambda e: e.asked - e.upper)[:_SHOWN]


def _cells(e: CertifiedEntry) -> tuple[str, ...]:
    numbers = [f"{number:.4g}" for number in (e.estimate, e.upper, e.asked)]
    samples = "exact" if e.samples is None else str(e.samples)
    return e.label, *numbers, e.verdict, samples, "–" if e.enough is None else str(e.enough)


def verdict(estimate: float, upper: float, asked: float, out_of_reach: bool) -> str:
    """Return the verdict on one entry."""
    if upper <= asked:
        return HOLDS
    return FAILS if estimate > asked and not out_of_reach else UNKNOWN


def _is_infinite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def finite_or_none(number: float) -> int | None:
    """Return a sample size, or None for infinity."""
    return int(number) if math.isfinite(number) else None
