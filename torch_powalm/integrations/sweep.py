"""Results of a user's own sweep: written by each run, gathered and compared by one command.

    python -m torch_powalm.integrations.sweep FOLDER [--tolerance 0.01]

finds every result.json below the folder, prints a table with one row per setting (runs that differ
only in the seed belong together), and writes sweep.csv and sweep.png: merit against violation.
"""

import argparse
import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from torch import Tensor

from torch_powalm.integrations.wrapped_optimizer import constrained


def write_result(
    folder: str | Path,
    optimizer: Any,
    merit: float | Tensor,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Write result.json and history.csv of a run.

    Args:
        folder: folder of the run; with Hydra `HydraConfig.get().runtime.output_dir`, since the
            current folder is the same for all runs of a sweep.
        optimizer: the optimizer of the run, or an engine's wrapper of it.
        merit: what is to be compared at equal violation, smaller is better, such as a test loss.
        settings: what the run was asked for; None for Hydra's overrides in the folder.
    """
    own = constrained(optimizer)
    found = {block.name: block.violation for block in own.report()}
    violations = {name: math.inf if math.isnan(v) else v for name, v in found.items()}
    merit = float(merit.detach() if isinstance(merit, Tensor) else merit)
    result = {"merit": merit, "violations": violations}
    if settings is not None:
        result["settings"] = {name: str(value) for name, value in settings.items()}
    Path(folder).mkdir(parents=True, exist_ok=True)
    own.history.to_csv(Path(folder) / "history.csv")
    (Path(folder) / "result.json").write_text(json.dumps(result, indent=1) + "\n")


@dataclass(frozen=True)
class Run:
    """One run: its setting without the seed, merit, largest violation, and history."""

    setting: str
    merit: float
    violation: float
    history: list[tuple[float, float]]  # violation and loss at each update


def gather(folder: str | Path) -> dict[str, list[Run]]:
    """Return the runs below a folder by setting."""
    found: dict[str, list[Run]] = {}
    for path in sorted(Path(folder).rglob("result.json")):
        run = _read(path)
        found.setdefault(run.setting, []).append(run)
    if not found:
        raise SystemExit(
            f"no result.json below {folder}; call write_result at the end of a run, with Hydra for "
            "the folder HydraConfig.get().runtime.output_dir"
        )
    return found


def _read(path: Path) -> Run:
    result = json.loads(path.read_text())
    settings = result.get("settings")
    if settings is None:
        overrides = path.parent / ".hydra" / "overrides.yaml"
        lines = overrides.read_text().splitlines() if overrides.exists() else []
        pairs = [line.removeprefix("- ").partition("=") for line in lines if "=" in line]
        settings = {name: value for name, _, value in pairs}
    kept = {n: v for n, v in settings.items() if not n.split(".")[-1].endswith("seed")}
    setting = ", ".join(f"{name}={value}" for name, value in sorted(kept.items())) or "default"
    worst = max((v for v in result["violations"].values()), default=0.0)
    history = path.parent / "history.csv"
    rows = csv.DictReader(history.read_text().splitlines()) if history.exists() else []
    steps = [(float(r["max_violation"]), float(r["loss"] or "nan")) for r in rows]
    return Run(setting, result["merit"], worst, [s for s in steps if not math.isnan(s[1])])


def table(runs: Mapping[str, list[Run]], tolerance: float) -> list[dict[str, Any]]:
    """Return one row per setting: feasible runs, then median and range of merit and violation."""
    rows = []
    for setting, group in runs.items():
        merits, violations = ([getattr(r, n) for r in group] for n in ("merit", "violation"))
        rows.append(
            {
                "setting": setting,
                "runs": len(group),
                "feasible": sum(v <= tolerance for v in violations),
                "merit": median(merits),
                "merit_range": f"{min(merits):.4g}–{max(merits):.4g}",
                "violation": median(violations),
                "violation_range": f"{min(violations):.3g}–{max(violations):.3g}",
            }
        )
    return sorted(rows, key=lambda row: (-row["feasible"] / row["runs"], row["merit"]))


def draw(runs: Mapping[str, list[Run]], tolerance: float, output: Path) -> None:
    """Draw merit against violation: a path per run if losses were logged, and its end."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    for i, (setting, group) in enumerate(runs.items()):
        color = f"C{i % 10}"
        for run in group:
            if run.history:
                axis.plot(*zip(*run.history, strict=True), color=color, linewidth=0.8, alpha=0.5)
        ends = sorted((run.violation, run.merit) for run in group)
        marker = "os^vDPX*"[i // 10 % 8]
        axis.plot(*zip(*ends, strict=True), marker=marker, color=color, label=setting)
    positive = [r.violation for group in runs.values() for r in group if r.violation > 0]
    axis.set_xscale("symlog", linthresh=min([*positive, tolerance]))
    axis.axvline(tolerance, color="gray", linestyle=":", label="tolerance")
    axis.set_xlabel("largest violation")
    axis.set_ylabel("merit (lines: loss)")
    axis.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.savefig(output, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    """Gather, print and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tolerance", type=float, default=1e-2, help="violation that is met")
    args = parser.parse_args(arguments)
    if not args.tolerance > 0:
        raise SystemExit(f"--tolerance must be positive, got {args.tolerance!r}")
    runs = gather(args.folder)
    rows = table(runs, args.tolerance)
    print("| setting | feasible | merit | violation |\n|---|---|---|---|")
    for row in rows:
        shown = f"{row['merit']:.4g} ({row['merit_range']})"
        far = f"{row['violation']:.3g} ({row['violation_range']})"
        print(f"| {row['setting']} | {row['feasible']} of {row['runs']} | {shown} | {far} |")
    with (args.folder / "sweep.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    draw(runs, args.tolerance, args.folder / "sweep.png")
    print(f"table and figure written to {args.folder}")


if __name__ == "__main__":
    main()
