"""Gather finished runs into tables (Markdown, CSV) and figures (PNG, SVG).

    python -m experiments.gather FOLDER [--output FOLDER/gathered] [--report FILE] [--keep FOLDER]

FOLDER holds run folders at any depth, as `experiments.solve` writes them. Nothing is solved here.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from experiments import figures, records, report, tables
from experiments.records import Run


def main() -> None:
    """Read, write, say where."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path, help="for tables and figures")
    parser.add_argument("--report", type=Path, help="file for the report on the reproduction")
    parser.add_argument(
        "--keep", type=Path, help="copy the records there instead, small enough to commit"
    )
    args = parser.parse_args()
    runs = [run for run in records.read(args.folder) if "case" in run.config]  # trainings have none
    if not runs:
        print(f"error: {args.folder} holds no finished run", file=sys.stderr)
        sys.exit(2)
    if args.keep:
        records.keep(runs, args.folder, args.keep)
        print(f"{len(runs)} records in {args.keep}")
        return
    output = args.output or args.folder / "gathered"
    for name in ("tables", "figures"):
        (output / name).mkdir(parents=True, exist_ok=True)
    for name, rows in make_tables(runs):
        show(name, rows)
        tables.write(output / "tables" / name, rows)
    for name, figure in make_figures(runs):
        figures.write(output / "figures" / name, figure)
    print(f"tables in {output / 'tables'}, figures in {output / 'figures'}")
    if args.report:
        seen = Path(os.path.relpath(output / "figures", args.report.parent))
        args.report.write_text(report.text(runs, seen))
        print(f"report in {args.report}")


def show(name: str, rows: Sequence[tables.Row]) -> None:
    """Print a table, on its side where it is wider than long."""
    table = Table(title=name, box=SIMPLE)
    columns = [list(rows[0]), *(list(row.values()) for row in rows)]
    if len(rows) < len(rows[0]) / 2:
        header, *lines = zip(*columns, strict=True)
    else:
        header, *lines = columns
    for column in header:
        table.add_column(column, justify="right")
    for line in lines:
        table.add_row(*line)
    Console().print(table)


def make_tables(runs: Sequence[Run]) -> Iterator[tuple[str, list[tables.Row]]]:
    """The tables that the runs allow, by name."""
    for experiment, made in _by_experiment(runs):
        if clusterings := [run for run in made if "clusters" in run.run]:
            yield f"{experiment}_clusters", tables.clustering(clusterings)
        if experiment in ("qp_double", "qp_triple", "gevp"):
            yield experiment, tables.trials(made, experiment)
        if experiment == "gevp":
            yield "gevp_powers", tables.powers(made, experiment)
        if experiment == "beyond":
            yield "beyond", tables.beyond(made, _references(runs))


def make_figures(runs: Sequence[Run]) -> Iterator[tuple[str, Figure]]:
    """The figures that the runs allow, by name."""
    for experiment, made in _by_experiment(runs):
        case = made[0].config["case"]
        if experiment != "beyond" and case in ("clustering_mnist", "clustering_fashion", "gevp"):
            yield experiment, figures.convergence(made, case)
        if experiment in ("qp_double", "qp_triple"):
            yield experiment, figures.violins(made, experiment)
        if experiment == "beyond":
            yield "beyond", figures.beyond(made, _references(runs))
        for case in sorted({run.config["case"] for run in made if "clusters" in run.run}):
            of_case = [run for run in made if run.config["case"] == case]
            best = min(of_case, key=lambda run: abs(run.config["nu"] - 0.8))
            prefix = "" if experiment == case else f"{experiment}_"
            yield f"{prefix}{case}_images", figures.clusters(best)


def _by_experiment(runs: Sequence[Run]) -> Iterator[tuple[str, list[Run]]]:
    for experiment in sorted({run.config["name"] for run in runs}):
        yield experiment, [run for run in runs if run.config["name"] == experiment]


def _references(runs: Sequence[Run]) -> list[Run]:
    """Runs with the paper's choice of everything."""
    return [run for run in runs if run.config["rule"] == "paper"]


if __name__ == "__main__":
    main()
