"""Plot the log of a constrained training.

    python -m torch_powalm.plot lightning_logs/version_0 [--output powalm.png] [--watch 10]

Plots loss, violations by block (training solid, validation dashed), multipliers and β over epochs,
from metrics.csv (CSVLogger) or TensorBoard event files. Several folders are treated as parts of one
resumed training: where they overlap, the later one counts. --watch SECONDS redraws the picture
until Ctrl-C, and waits while the log is still empty.
"""

import argparse
import csv
import importlib
import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Curve = dict[float, float]  # value by epoch

_PANELS = {
    "loss": lambda name: "loss" in name and not name.startswith("powalm/"),
    "largest violation": lambda name: "violation/" in name,
    "norm of multipliers": lambda name: name.startswith("powalm/") and "/y/" in name,
    "penalty β": lambda name: name.startswith("powalm/") and name.endswith("/beta"),
}
_FLOOR = 1e-8  # of the logarithmic axis, for blocks with violation 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the arguments and draw, once or repeatedly."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="folders of the log, oldest first")
    parser.add_argument("--output", type=Path, help="image; default: powalm.png in the last folder")
    parser.add_argument(
        "--watch", type=float, metavar="SECONDS", help="redraw the picture at this interval"
    )
    args = parser.parse_args(arguments)
    output = args.output or args.folders[-1] / "powalm.png"
    if args.watch is None:
        picture(args.folders, output)
        return
    try:
        while True:
            try:
                picture(args.folders, output)
            except SystemExit as waiting:  # no line in the log yet
                print(waiting, flush=True)
            time.sleep(args.watch)
    except KeyboardInterrupt:
        return


def picture(folders: Sequence[Path], output: Path) -> None:
    """Read and draw once; exit with a message if there is nothing to draw."""
    curves = read(folders)
    if not any(name.startswith("powalm/") for name in curves):
        where = ", ".join(map(str, folders))
        raise SystemExit(f"no powalm/ columns in {where}: is PowerALMCallback in use?")
    draw(curves, output)
    print(f"picture written to {output}", flush=True)


def read(folders: Iterable[Path]) -> dict[str, Curve]:
    """Return every logged scalar by name, as values over epochs."""
    curves: dict[str, Curve] = {}
    for folder in folders:
        log = folder / "metrics.csv"
        rows = _csv_rows(log) if log.exists() else _tensorboard_rows(folder)
        for name, epoch, value in rows:
            curves.setdefault(name, {})[epoch] = value
    return curves


def draw(curves: dict[str, Curve], output: Path) -> None:
    """Draw one panel each for loss, violations, multipliers and β."""
    from matplotlib.figure import Figure  # no window and no global state

    figure = Figure(figsize=(9, 6), layout="constrained")
    for axis, (title, wanted) in zip(figure.subplots(2, 2).flat, _PANELS.items(), strict=True):
        for name in sorted(filter(wanted, curves)):
            curve = sorted(curves[name].items())
            values = [max(v, _FLOOR) if "violation" in title else v for _, v in curve]
            validation = "val" in name.split("_")[0].split("/")
            axis.plot(
                [epoch for epoch, _ in curve],
                values,
                "--" if validation else "-",
                marker="." if len(curve) < 30 else None,
                label=name.removeprefix("powalm/").replace("violation/", "").removeprefix("y/"),
            )
        if "violation" in title:
            axis.set_yscale("log")
        axis.set_xlabel("epoch")
        axis.set_ylabel(title)
        if axis.lines:
            axis.legend(frameon=False, fontsize="small")
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=120)


def _csv_rows(path: Path) -> list[tuple[str, float, float]]:
    """Return (name, epoch, value) from CSVLogger; the last value of an epoch counts."""
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]  # the last line may be incomplete while training runs
    found = []
    for row in csv.DictReader(whole.splitlines()):
        epoch = row.get("epoch") or row["step"]
        for name, value in row.items():
            if name not in ("epoch", "step") and value:
                found.append((name, float(epoch), float(value)))
    return [entry for entry in found if math.isfinite(entry[2])]


def _tensorboard_rows(folder: Path) -> list[tuple[str, float, float]]:
    """Return (name, epoch, value) from TensorBoardLogger, which logs the epoch as a scalar."""
    if not list(folder.glob("events.out.tfevents.*")):
        raise SystemExit(f"{folder} has neither metrics.csv nor TensorBoard event files")
    reader: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    names = events.Tags()["scalars"]
    epochs = {e.step: e.value for e in events.Scalars("epoch")} if "epoch" in names else {}
    return [
        (name, epochs.get(event.step, float(event.step)), event.value)
        for name in names
        if name != "epoch"
        for event in events.Scalars(name)
    ]


if __name__ == "__main__":
    main()
