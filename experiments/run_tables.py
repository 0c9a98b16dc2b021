"""Tidy tables of finished runs, which figures and reports are made from.

For each experiment a folder with

    runs.csv.gz        one row a run: its key, and everything in run.json by dotted name
    history.csv.gz     one row an outer iteration or epoch, for the first instances
    clusters.csv.gz    one row an image of a clustering
    candidates.csv.gz  one row a setting of a training that was tried

A cell of runs.csv.gz is JSON, except that words are written without quotes; it is empty where a run
has no such entry.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments import run_folder
from experiments.atomic_files import write_csv
from experiments.run_folder import TABLES, Row, Run, differences, flatten

INSTANCES = 10  # instances (seeds) whose histories are kept: tables and curves use no others
RUNS = "runs.csv.gz"


def read(folder: Path, broken: list[str] | None = None) -> list[Run]:
    """Read the tables in a folder or, where it has none, the run folders below it.

    Args:
        folder: the folder.
        broken: takes the messages of broken run folders, which are skipped; None to raise.
    """
    if tables := sorted(folder.glob(f"*/{RUNS}")):
        return [run for path in tables for run in _read(path.parent)]
    return run_folder.read(folder, broken)


def keep(runs: Sequence[Run], source: Path, results: Path) -> None:
    """Add runs to the tables in a folder; no other file there is touched.

    A run that is kept already is replaced if its settings are the same.

    Args:
        runs: the runs.
        source: where they were read from.
        results: the folder of the tables.

    Raises:
        ValueError: if the folder is or contains the source or is inside it, or if a run is kept
            with other settings; nothing is written then.
    """
    here, there = source.resolve(), results.resolve()
    if here == there or here in there.parents or there in here.parents:
        raise ValueError(f"--keep must be a folder apart from {source}, got {results}")
    merged = {}
    for experiment, added in by_experiment(runs):
        folder = results / run_folder.check_name(experiment)
        kept = {run.key: run for run in _read(folder)} if (folder / RUNS).exists() else {}
        for run in added:
            old = kept.get(run.key, run)
            if old.config != run.config:
                raise ValueError(
                    f"{folder / RUNS} has {run.key} with other settings "
                    f"({differences(old.config, run.config)})"
                )
            kept[run.key] = run
        merged[folder] = sorted(kept.values(), key=lambda run: run.key.split("/"))
    for folder, all_runs in merged.items():
        _write(folder, all_runs)


def by_experiment(runs: Sequence[Run]) -> Iterator[tuple[str, list[Run]]]:
    """The runs by the name of their experiment."""
    for experiment in sorted({run.config["name"] for run in runs}):
        yield experiment, [run for run in runs if run.config["name"] == experiment]


def pictured(runs: Sequence[Run]) -> list[Run]:
    """The runs of an experiment whose clusters are drawn: of every data set the ν nearest to 0.8.

    Among several those with the paper's rule and of the first instance are preferred.

    Not those of `beyond`, whose pictures would repeat those of the clustering experiments.
    """
    clusterings = [r for r in runs if "clusters" in r.run and r.config["name"] != "beyond"]
    cases = sorted({run.config["case"] for run in clusterings})
    return [
        min(
            (run for run in clusterings if run.config["case"] == case),
            key=lambda run: (
                abs(run.config["nu"] - 0.8),
                run.config["rule"] != "paper_runs",
                run.run["seed"],
            ),
        )
        for case in cases
    ]


def _write(folder: Path, runs: Sequence[Run]) -> None:
    rows = [{name: _cell(value) for name, value in flatten(run.run).items()} for run in runs]
    names = sorted({name for row in rows for name in row} - {"run"})
    write_csv(folder / RUNS, rows, ["run", *names])
    shown = {run.key for run in pictured(runs)}
    for name in TABLES:
        chosen = [run for run in runs if name != "history" or run.run["seed"] < INSTANCES]
        rows = [
            {"run": run.key} | (row if name != "clusters" or run.key in shown else _without(row))
            for run in chosen
            for row in run.tables.get(name, [])
        ]
        if rows:
            columns = dict.fromkeys(column for row in rows for column in row)
            write_csv(folder / f"{name}.csv.gz", rows, list(columns))


def _read(folder: Path) -> list[Run]:
    """Read the tables of one experiment; raise ValueError with the name of a damaged one."""
    tables: dict[str, dict[str, list[Row]]] = {}
    for name in TABLES:
        path = folder / f"{name}.csv.gz"
        for row in _rows(path) if path.exists() else ():
            tables.setdefault(row.pop("run"), {}).setdefault(name, []).append(row)
    found = []
    for row in _rows(folder / RUNS):
        run = Run(_nested(row.items()), tables.get(row["run"], {}))
        try:
            run_folder.check_name(run.config["name"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{folder / RUNS} is not a table of runs: {error}") from error
        found.append(run)
    return found


def _rows(path: Path) -> list[Row]:
    rows = run_folder.table(path)
    if any("run" not in row or None in row or None in row.values() for row in rows):
        raise ValueError(f"{path} is not a table of runs: its rows must have the cells of its head")
    return rows


def _without(row: Row) -> Row:
    """A row of clusters without the image."""
    return {name: value for name, value in row.items() if name != "pixels"}


def _cell(value: Any) -> str:
    if isinstance(value, str) and value and not _is_json(value):
        return value
    return json.dumps(value)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _nested(cells: Iterable[tuple[str, str]]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, cell in cells:
        if cell:
            *parents, leaf = name.split(".")
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[leaf] = json.loads(cell) if _is_json(cell) else cell
    return tree
