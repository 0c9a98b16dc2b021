"""Plot the log of a constrained training.

    python -m torch_powalm.plot LOG [--tolerance 0.01] [--output powalm.png] [--watch 10]

Plots loss, violations by block (training solid, validation dashed), multipliers by block and β
over epochs. LOG is a folder of Lightning's CSVLogger or TensorBoardLogger, of TensorBoard under the
Hugging Face Trainer, its output folder with checkpoints, a run of a local MLflow store, or a file
of `History.to_csv`. Several logs are parts of one resumed training: where they overlap, the later
one counts. --watch SECONDS redraws the picture until Ctrl-C, and waits while the log is empty.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_powalm.integrations.log_files import Curve, read

_PANELS = {
    "loss": lambda name: "loss" in name and not name.startswith("powalm/"),
    "largest violation": lambda name: "violation/" in name,
    "norm of multipliers": lambda name: name.startswith("powalm/") and "/y/" in name,
    "penalty β": lambda name: name.startswith("powalm/") and name.endswith("/beta"),
}
Tolerances = dict[str, float]  # by block; "" for all others


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the arguments and draw, once or repeatedly."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="folders of the log, oldest first")
    parser.add_argument("--output", type=Path, help="image; default: powalm.png in the last folder")
    parser.add_argument(
        *("--tolerance", "-t"),
        action="append",
        default=[],
        help="line of a tolerance: a number, or NAME=NUMBER for one block; may be repeated",
    )
    parser.add_argument(
        "--watch", type=float, metavar="SECONDS", help="redraw the picture at this interval"
    )
    args = parser.parse_args(arguments)
    last = args.folders[-1]
    output = args.output or (last.parent if last.suffix == ".csv" else last) / "powalm.png"
    tolerances = parse_tolerances(args.tolerance)
    if args.watch is None:
        picture(args.folders, output, tolerances)
        return
    try:
        while True:
            try:
                picture(args.folders, output, tolerances)
            except SystemExit as waiting:  # no line in the log yet
                print(waiting, flush=True)
            time.sleep(args.watch)
    except KeyboardInterrupt:
        return


def parse_tolerances(given: Sequence[str]) -> Tolerances:
    """Return the tolerances of --tolerance; a value that is no positive number ends the program."""
    found = {}
    for text in given:
        name, _, number = text.rpartition("=")
        try:
            found[name] = float(number)
        except ValueError:
            found[name] = -1.0
        if not found[name] > 0:
            raise SystemExit(f"--tolerance must be a positive NUMBER or NAME=NUMBER, got {text!r}")
    return found


def picture(folders: Sequence[Path], output: Path, tolerances: Tolerances | None = None) -> None:
    """Read and draw once; exit with a message if there is nothing to draw."""
    curves = read(folders)
    if not any(name.startswith("powalm/") for name in curves):
        where = ", ".join(map(str, folders))
        raise SystemExit(f"no powalm/ columns in {where}: is PowerALMCallback in use?")
    draw(curves, output, tolerances or {})
    print(f"picture written to {output}", flush=True)


def draw(curves: dict[str, Curve], output: Path, tolerances: Tolerances | None = None) -> None:
    """Draw one panel each for loss, violations, multipliers and β, with legends beside them."""
    from matplotlib.figure import Figure  # no window and no global state

    figure = Figure(figsize=(11, 6), layout="constrained")
    for axis, (title, wanted) in zip(figure.subplots(2, 2).flat, _PANELS.items(), strict=True):
        shown = {name: curves[name] for name in sorted(filter(wanted, curves))}
        for i, (name, curve) in enumerate(shown.items()):
            validation = "val" in name.split("_")[0].split("/") or name.startswith("eval")
            points = sorted(curve.items())
            axis.plot(
                *zip(*points, strict=True),
                linestyle="--" if validation else "-",
                color=f"C{i % 10}",
                marker="." if len(points) < 30 else None,
                label=_label(name),
            )
        if "violation" in title:
            _show_violations(axis, shown, tolerances or {})
        axis.set_xlabel("epoch")
        axis.set_ylabel(title)
        if axis.lines:
            axis.legend(
                frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0)
            )
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=120)


def _label(name: str) -> str:
    return name.removeprefix("powalm/").replace("violation/", "").removeprefix("y/")


def _show_violations(axis: Any, shown: dict[str, Curve], tolerances: Tolerances) -> None:
    """Make the axis logarithmic down to the smallest violation, with zeros at zero; add lines."""
    positive = [v for curve in shown.values() for v in curve.values() if v > 0]
    smallest = min([*positive, *tolerances.values()], default=1.0)
    axis.set_yscale("symlog", linthresh=smallest)
    axis.set_ylim(bottom=-0.1 * smallest)
    for name, tolerance in tolerances.items():
        label = f"tolerance of {name}" if name else "tolerance"
        axis.axhline(tolerance, color="gray", linestyle=":", linewidth=1.0, label=label)


if __name__ == "__main__":
    main()
