"""Make tables and figures of finished runs, keep the runs, or write the report.

    python -m experiments.gather RUNS [--output FOLDER]
    python -m experiments.gather RUNS --keep RESULTS
    python -m experiments.gather RESULTS --report FILE

RUNS has run folders at any depth, as `experiments.solve` and `experiments.train` write them.
RESULTS has tidy tables; --keep adds the runs to them and touches no other file. --report writes the
report on the reproduction and, in RESULTS/figures, its figures. Nothing is solved here. Broken
records are listed and skipped, and the exit code is 2.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from matplotlib.figure import Figure
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from experiments import (
    clustering_tables,
    dual_step_evidence,
    figures,
    reproduction_report,
    run_tables,
    tables,
    violins,
)
from experiments.atomic_files import write_text
from experiments.run_folder import Run


def main() -> None:
    """Read the runs and do what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="run folders or tidy tables")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--output", type=Path, help="folder of tables and figures")
    what.add_argument("--keep", type=Path, help="folder of tidy tables to add the runs to")
    what.add_argument("--report", type=Path, help="file of the report on the reproduction")
    args = parser.parse_args()
    broken: list[str] = []
    try:
        runs = run_tables.read(args.folder, broken)
        for message in broken:
            print(f"error: {message}", file=sys.stderr)
        if broken and not runs:
            sys.exit(2)
        if args.keep and runs:
            run_tables.keep(runs, args.folder, args.keep)
    except (ValueError, OSError) as error:
        fail(str(error))
    if args.keep and runs:
        print(f"{len(runs)} runs added to the tables in {args.keep}")
    else:
        runs = [run for run in runs if "case" in run.config]  # trainings have none
        if not runs:
            fail(f"{args.folder} has no finished run")
        if args.report:
            _report(runs, args.folder / "figures", args.report)
        else:
            _tabulate(runs, args.output or args.folder / "gathered")
    if broken:
        fail(f"{len(broken)} broken records were skipped")


def fail(message: str) -> NoReturn:
    """Print an error and exit with code 2."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def _tabulate(runs: Sequence[Run], output: Path) -> None:
    for name, rows in make_tables(runs):
        show(name, rows)
        tables.write(output / "tables" / name, rows)
    for name, figure in make_figures(runs):
        figures.write(output / "figures" / name, figure, "png", "svg")
    print(f"tables in {output / 'tables'}, figures in {output / 'figures'}")


def _report(runs: Sequence[Run], folder: Path, report: Path) -> None:
    for name, figure in make_figures(runs):
        figures.write(folder / name, figure, "png")
    seen = Path(os.path.relpath(folder, report.parent))
    write_text(report, reproduction_report.text(runs, seen))
    print(f"report in {report}, figures in {folder}")


def show(name: str, rows: Sequence[tables.Row]) -> None:
    """Print a table, transposed if it is wider than long."""
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
    """The tables that can be made of the runs, by name."""
    for experiment, made in run_tables.by_experiment(runs):
        if clusterings := [run for run in made if "clusters" in run.run]:
            yield f"{experiment}_clusters", clustering_tables.single_runs(clusterings)
        if experiment in ("qp_double", "qp_triple", "gevp"):
            yield experiment, tables.trials(made, experiment)
        if experiment == "gevp":
            yield "gevp_powers", tables.powers(made, experiment)
        if experiment == "beyond":
            yield "beyond", tables.beyond(made, tables.papers_choice(runs))


def make_figures(runs: Sequence[Run]) -> Iterator[tuple[str, Figure]]:
    """The figures that can be drawn of the runs, by name."""
    for experiment, made in run_tables.by_experiment(runs):
        case = made[0].config["case"]
        if experiment != "beyond" and case in ("clustering_mnist", "clustering_fashion", "gevp"):
            yield experiment, figures.convergence(made, case)
        if experiment == "gevp":
            yield "dual_step", dual_step_evidence.figure(figures.color)
        if experiment in ("qp_double", "qp_triple"):
            yield experiment, violins.figure(made, experiment)
        if experiment == "beyond":
            yield "beyond", figures.beyond(made, tables.papers_choice(runs))
        for run in run_tables.pictured(made):
            case = run.config["case"]
            prefix = "" if experiment == case else f"{experiment}_"
            yield f"{prefix}{case}_images", figures.clusters(run)


if __name__ == "__main__":
    main()
