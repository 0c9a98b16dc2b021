"""REPRODUCTION.md: every figure and table of the paper beside ours, from the tables of runs."""

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import NamedTuple

from experiments import (
    clustering_tables,
    dual_step_evidence,
    note_values,
    paper_claims,
    tables,
)
from experiments.run_folder import Run

NOTES = Path(__file__).parent / "notes"  # text below the tables, by experiment


class Item(NamedTuple):
    """A figure or table of the paper.

    Args:
        title: what it is in the paper.
        experiment: name of its runs.
        command: the command that makes them.
        figures: names of our figures.
    """

    title: str
    experiment: str
    command: str
    figures: tuple[str, ...]


SOLVE = "python -m experiments.solve -m experiment="
ITEMS = (
    Item(
        "Figure 1: clustering of Fashion-MNIST",
        "clustering_fashion",
        f"{SOLVE}clustering_fashion data.root=FOLDER",
        ("clustering_fashion", "clustering_fashion_images"),
    ),
    Item(
        "Figure 2: clustering of MNIST",
        "clustering_mnist",
        f"{SOLVE}clustering_mnist data.root=FOLDER",
        ("clustering_mnist", "clustering_mnist_images"),
    ),
    Item(
        "Table 1 and Figure 3: QPs, double loop",
        "qp_double",
        f"{SOLVE}qp_double 'seed=range(100)'",
        ("qp_double",),
    ),
    Item("Table 2: QPs, triple loop", "qp_triple", f"{SOLVE}qp_triple", ("qp_triple",)),
    Item(
        "Figure 4 and Table 3: generalized eigenvalue problem",
        "gevp",
        f"{SOLVE}gevp; {SOLVE}gevp nu=0.1,0.3,0.5,0.7,0.9 seed=0",
        ("gevp", "dual_step"),
    ),
    Item(
        "Beyond the paper: our dual rule and our solvers",
        "beyond",
        f"{SOLVE}beyond; {SOLVE}beyond problem=clustering_mnist,clustering_fashion seed=0 "
        "data.root=FOLDER",
        ("beyond",),
    ),
)


def text(runs: Sequence[Run], figures: Path) -> str:
    """The whole report; `figures` is the folder of the figures relative to it."""
    numbers = note_values.values(runs)
    parts = [_note("introduction", numbers), _machine(runs), _claims(runs)]
    parts.append(_note("claims", numbers))
    for item in ITEMS:
        parts.append(f"## {item.title}\n\n`{item.command}`\n")
        made = [run for run in runs if run.config["name"] == item.experiment]
        if not made:
            parts.append("Not run.\n")
            continue
        parts.extend(_tables(item.experiment, made, runs))
        if item.experiment == "gevp":
            parts += ["### The dual step of the paper's runs\n", _note("dual_step", numbers)]
            parts.append(tables.markdown(dual_step_evidence.table()))
        if (NOTES / f"{item.experiment}.md").exists():
            parts.append(_note(item.experiment, numbers))
        for name in item.figures:
            parts.append(f"![{name}]({figures / name}.png)\n")
    return "\n".join(parts)


def _note(name: str, numbers: Mapping[str, str]) -> str:
    """Paragraphs with their numbers in place of ${name}."""
    text = Template((NOTES / f"{name}.md").read_text()).substitute(numbers)
    parts = [part if part.startswith("#") else _fill(part) for part in text.strip().split("\n\n")]
    return "\n\n".join(parts) + "\n"


def _fill(paragraph: str) -> str:
    return textwrap.fill(paragraph, 100, break_long_words=False, break_on_hyphens=False)


def _tables(experiment: str, made: Sequence[Run], runs: Sequence[Run]) -> list[str]:
    if experiment.startswith("clustering"):
        part = made[0].config["problem"]["features"]["data"]["part"]
        return [
            tables.markdown(clustering_tables.powers(made)),
            f"Instances (a network, its features of the {part} data, and a start), all powers:\n",
            tables.markdown(clustering_tables.qualities(made)),
        ]
    if experiment == "beyond":
        return [
            "Gradient calls to reach the same tolerances, median over the seeds. On the QPs an\n"
            "active-set method finishes our runs once few variables are off their bounds.\n",
            tables.markdown(tables.beyond(made, tables.papers_choice(runs))),
        ]
    found = [
        tables.markdown(tables.trials(made, experiment)),
        "Residuals, median and range. p is that of the two-sided rank-sum test: how often values\n"
        "would be at least as far apart if ours and the paper's came from one distribution.\n",
        tables.markdown(tables.residuals(made, experiment)),
    ]
    if experiment == "gevp":
        found += [
            "By ν, first instance (Figure 4):\n",
            tables.markdown(tables.powers(made, "gevp")),
        ]
    if experiment == "qp_double":
        found.append(f"The table covers the first 10 instances. {_violins(made)}\n")
    return found


def _violins(runs: Sequence[Run]) -> str:
    """Number of instances for each ν, and the time of one."""
    seconds: dict[float, list[float]] = {}
    for run in runs:
        if run.config["rule"] != "paper_text":
            seconds.setdefault(run.config["nu"], []).append(run.run["seconds"])
    parts = [
        f"{len(of_nu)} for ν = {nu:g} ({statistics.mean(of_nu):.0f} s each)"
        for nu, of_nu in sorted(seconds.items())
    ]
    return f"The violins cover {', '.join(parts)}."


def _claims(runs: Sequence[Run]) -> str:
    columns = {
        "the paper's own numbers": paper_claims.answers(paper_claims.papers_runs()),
        "ours, σ_1/√(k+1)": paper_claims.answers(tables.with_rule(runs, "paper_runs")),
        "ours, Algorithm 1": paper_claims.answers(tables.with_rule(runs, "paper_text", "paper")),
    }
    claims = [answer.claim for answer in next(iter(columns.values()))]
    rows = [
        {"the paper's claim": claim}
        | {
            name: f"{found[i].verdict}: {found[i].evidence}".removesuffix(": ")
            for name, found in columns.items()
        }
        for i, claim in enumerate(claims)
    ]
    return f"## The paper's claims\n\n{tables.markdown(rows)}"


def _machine(runs: Sequence[Run]) -> str:
    cores = sorted({str(run.run["machine"]["cores"]) for run in runs})
    torch = sorted({run.run["versions"]["torch"] for run in runs})
    commits = sorted({str(run.run["commit"])[:10] for run in runs})
    hours = sum(run.run["seconds"] for run in runs) / 3600
    failed = sum(not run.converged for run in runs)
    return (
        f"{len(runs)} runs, of which {failed} did not converge; one thread each, {hours:.1f} hours "
        f"of solving in total, on {', '.join(cores)} cores, torch {', '.join(torch)}, "
        f"commit {', '.join(commits)}.\n"
    )
