"""A finished run and its folder: CSV tables, and run.json, which is written last.

A folder without a complete run.json is an unfinished run and is run again.
"""

import csv
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from experiments.atomic_files import read_csv, remove_left_over, write_csv, write_text

Row = dict[str, str]
RUN = "run.json"
ROWS = 20_000  # of a longer table, about as many evenly spaced rows are read
TABLES = ("history", "clusters", "candidates")  # files of a run folder, all but the first optional
WORDS = ("inner_status", "multiplier")  # columns of a history that hold no numbers


@dataclass(frozen=True)
class Run:
    """A finished run.

    Args:
        run: contents of run.json.
        tables: rows of its CSV files by name.
    """

    run: dict[str, Any]
    tables: dict[str, list[Row]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The path of its folder below that of the experiment, such as upfag/nu=0.6/seed=0."""
        return str(self.run["run"])

    @property
    def config(self) -> dict[str, Any]:
        """The resolved config."""
        config: dict[str, Any] = self.run["config"]
        return config

    @property
    def result(self) -> dict[str, Any]:
        """Numbers at the end of the run."""
        result: dict[str, Any] = self.run["result"]
        return result

    @property
    def converged(self) -> bool:
        """Whether the stop of its config was reached: both residuals, or violation and |f − f*|."""
        return bool(self.run["status"] == "converged")

    @cached_property
    def history(self) -> dict[str, list[float]]:
        """The numeric columns of the history; empty if it was not kept."""
        rows = self.tables.get("history", [])
        names = rows[0] if rows else ()
        return {name: [float(row[name]) for row in rows] for name in names if name not in WORDS}


def write(
    folder: Path, run: Mapping[str, Any], tables: Mapping[str, Sequence[Mapping[str, Any]]]
) -> None:
    """Write the tables, then run.json, which marks the run as finished."""
    for name, rows in tables.items():
        write_csv(folder / f"{name}.csv", rows)
    write_text(folder / RUN, json.dumps(run, indent=1) + "\n")


def read(root: Path, broken: list[str] | None = None) -> list[Run]:
    """Read all finished runs below a folder, sorted by path.

    Args:
        root: the folder.
        broken: takes the messages of broken records, which are skipped; None to raise.
    """
    runs = []
    for path in sorted(root.rglob(RUN)):
        try:
            runs.append(_read(path))
        except ValueError as error:
            if broken is None:
                raise
            broken.append(str(error))
    return runs


def finished(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the folder holds the finished run of this resolved config.

    Raises:
        ValueError: if it holds a run with other settings, which must not be overwritten.
    """
    try:
        found = json.loads((folder / RUN).read_text())["config"]
    except (OSError, ValueError, KeyError):
        return False
    remove_left_over(folder)  # by a kill right after the end of the run
    if found != config:
        raise ValueError(
            f"{folder} holds a run with other settings ({differences(found, config)}); "
            "choose another output or name"
        )
    return True


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The settings that differ between two configs, old and new values."""
    before, after = flatten(old), flatten(new)
    names = [name for name in before | after if before.get(name) != after.get(name)]
    return ", ".join(f"{name}: {before.get(name)} -> {after.get(name)}" for name in names)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves of nested mappings by dotted name."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            leaves |= flatten(value, f"{prefix}{key}.")
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves


def check_name(name: object) -> str:
    """Return the name of an experiment if it can name a folder."""
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
        raise ValueError(
            f"name must be a plain folder name of letters, digits, '_', '.' and '-', got {name!r}"
        )
    return name


def _read(path: Path) -> Run:
    try:
        if not path.is_file():  # reading a pipe would wait forever
            raise TypeError("not a file")
        run = json.loads(path.read_text())
        check_name(run["config"]["name"])
        if not isinstance(run["run"], str):
            raise TypeError(f"run must be a string, got {run['run']!r}")
        if "case" in run["config"]:
            check_name(run["config"]["case"])
        for name, kind in (("seed", int), ("status", str), ("result", dict)):
            if name in run and not isinstance(run[name], kind):
                raise TypeError(f"{name} must be of type {kind.__name__}, got {run[name]!r}")
    except KeyError as error:
        raise ValueError(f"{path} is not a record of a run: it has no {error}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not a record of a run: {error}") from error
    files = {name: path.parent / f"{name}.csv" for name in TABLES}
    found = Run(run, {name: table(file, ROWS) for name, file in files.items() if file.exists()})
    try:
        _ = found.history
    except (ValueError, TypeError) as error:
        raise ValueError(f"{files['history']} is not a history: {error}") from error
    return found


def table(path: Path, rows: int | None = None) -> list[Row]:
    """Read a table; raise ValueError with its name if it is damaged."""
    try:
        if not path.is_file():
            raise ValueError("not a file")
        return read_csv(path, rows)
    except (ValueError, csv.Error, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a table: {error}") from error
