"""Logs of all engines as curves by name: CSV, TensorBoard, Hugging Face, MLflow."""

import csv
import importlib
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Curve = dict[float, float]  # value by epoch, or by step where the log has no epochs
Row = tuple[str, float, float]  # name, epoch, value


def read(folders: Iterable[Path]) -> dict[str, Curve]:
    """Return every logged scalar by name; where folders overlap, the later one counts."""
    curves: dict[str, Curve] = {}
    for folder in folders:
        for name, epoch, value in _rows(folder):
            if math.isfinite(value):
                curves.setdefault(name.removeprefix("train/"), {})[epoch] = value
    return curves


def _rows(folder: Path) -> Iterator[Row]:
    """Return the scalars of the kind of log that the folder, or the file, holds."""
    if folder.suffix == ".csv":
        return _csv_rows(folder)
    if (folder / "metrics.csv").exists():
        return _csv_rows(folder / "metrics.csv")
    if list(folder.glob("events.out.tfevents.*")):
        return _tensorboard_rows(folder)
    states = [*folder.glob("trainer_state.json"), *folder.glob("checkpoint-*/trainer_state.json")]
    if states:
        return _trainer_rows(max(states, key=lambda path: path.stat().st_mtime))
    if (folder / "metrics").is_dir():
        return _mlflow_rows(folder / "metrics")
    raise SystemExit(
        f"{folder} has neither metrics.csv nor TensorBoard event files, trainer_state.json or "
        "metrics of MLflow"
    )


def _csv_rows(path: Path) -> Iterator[Row]:
    """Read a CSVLogger's file or that of `History.to_csv`; the last value of an epoch counts."""
    with path.open(newline="") as file:
        # The last line may be incomplete while training runs.
        for row in csv.DictReader(line for line in file if line.endswith("\n")):
            epoch = float(row.get("epoch") or row["step"])
            own = "primal_residual" in row  # History.to_csv has the names without a prefix
            for name, value in row.items():
                if value and name not in ("epoch", "step", "signals"):
                    prefix = "powalm/" if own and name != "loss" else ""
                    yield prefix + name, epoch, float(value)


def _tensorboard_rows(folder: Path) -> Iterator[Row]:
    """Read event files; TensorBoardLogger logs the epoch as a scalar."""
    reader: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    names = events.Tags()["scalars"]
    tag = next((name for name in ("epoch", "train/epoch") if name in names), None)
    epochs = {e.step: e.value for e in events.Scalars(tag)} if tag else {}
    for name in names:
        if name != tag:
            for event in events.Scalars(name):
                yield name, epochs.get(event.step, float(event.step)), event.value


def _trainer_rows(path: Path) -> Iterator[Row]:
    """Read the log history that a Hugging Face Trainer saves with its checkpoints."""
    for row in json.loads(path.read_text())["log_history"]:
        for name, value in row.items():
            if name not in ("epoch", "step") and isinstance(value, int | float):
                yield name, float(row.get("epoch", row.get("step", 0))), float(value)


def _mlflow_rows(folder: Path) -> Iterator[Row]:
    """Read the files of a local MLflow store: one per metric, lines of time, value, step."""
    rows = {
        str(path.relative_to(folder)): [line.split() for line in path.read_text().splitlines()]
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    epochs = {int(step): float(value) for _, value, step in rows.pop("epoch", [])}
    for name, lines in rows.items():
        for _, value, step in lines:
            yield name, epochs.get(int(step), float(step)), float(value)
