"""REPRODUCTION.md: every figure and table of the paper beside ours, from the tables of runs."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments import dual_step_evidence, paper_claims, tables
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
HEAD = """# The paper's figures and tables, reproduced

`python -m experiments.gather experiments/results --report experiments/REPRODUCTION.md` writes this
report from the tables of runs and histories in [results](results). `make reproduce` makes the runs
(DATA=FOLDER uses a local copy of the images). Counts are iterations of UPFAG where the paper counts
these, else gradients of f. Every residual is recomputed from (x, y). Ratios are ours over the
paper's; "–" marks a run that did not reach the tolerances or that the paper does not report. In the
figures, hollow markers are the paper's values, and each ν has the same color everywhere. A run has
the same digits every time on one machine; another processor or version of torch rounds differently.

The paper's runs used another dual step than its Algorithm 1, σ_1/√(k+1): its own curves show this
([below](#the-dual-step-of-the-papers-runs)). `alm: paper_runs` has that step and `alm: paper_text`
the printed one. Both certify with y + β∇φ(A) alone and have no bound on idle evaluations, no
scaling and no active-set method. The clusterings are older runs with the printed step and with our
certificate (`alm: paper_certified`); they have not been repeated with σ_1/√(k+1), which takes hours
on two cores. "Ends on ‖A‖" counts the runs whose violation, not the other residual, was the
last to fall below its tolerance.
"""


EVIDENCE = """The GEVP has one multiplier, and A(x) is a number. At the end of a subproblem,
y_k + β_k∇φ(A(x)) is the multiplier −f* of the solution, so that the violations in Figure 4 give the
multipliers: y_k = −f* + β_k‖A_k‖^ν, with β_k = 0.01 · 3^(k−1) and −f* = 1.5628, the suboptimality
where x is almost 0. The steps between them are σ_k = (y_k − y_{k+1})/‖A_k‖^ν. The columns by rule
follow from the violations alone, with y_1 = 0 and σ_1 = 10. Iterations near x = 0, where the
subproblem has not found the solution yet, are left out. The curves do not show the sign of A in the
first iterations; for ν = 0.6 it matters at k = 2, and the table takes it as positive. No choice of
signs brings Algorithm 1's multipliers near those read off.
"""
CLAIMS = """In the paper's column an iteration of UPFAG counts as three gradients. Its own numbers
differ from its text in two places: on Fashion-MNIST ν = 0.7 and 0.8 take 0.75 and 0.55 of the
iterations of ν = 1, not less than half, and in gradients the double loop is cheaper than the triple
loop for ν = 0.6 only.
"""


def text(runs: Sequence[Run], figures: Path) -> str:
    """The whole report; `figures` is the folder of the figures relative to it."""
    parts = [HEAD, _machine(runs), _claims(runs)]
    for item in ITEMS:
        parts.append(f"## {item.title}\n\n`{item.command}`\n")
        made = [run for run in runs if run.config["name"] == item.experiment]
        if not made:
            parts.append("Not run.\n")
            continue
        parts.extend(_tables(item.experiment, made, runs))
        notes = NOTES / f"{item.experiment}.md"
        if notes.exists():
            parts.append(notes.read_text())
        for name in item.figures:
            parts.append(f"![{name}]({figures / name}.png)\n")
    return "\n".join(parts)


def _tables(experiment: str, made: Sequence[Run], runs: Sequence[Run]) -> list[str]:
    if experiment.startswith("clustering"):
        accuracy = made[0].run["clusters"]["network_accuracy"]
        part = made[0].config["problem"]["features"]["data"]["part"]
        return [
            tables.markdown(tables.clustering(made)),
            f"Features: {part} data, test accuracy of the network {accuracy:.4f}.\n",
        ]
    if experiment == "beyond":
        references = [run for run in runs if run.config["rule"] in ("paper", "paper_runs")]
        return [
            "Gradient calls to reach the same tolerances, median over the seeds. On the QPs an\n"
            "active-set method finishes our runs once few variables are off their bounds.\n",
            tables.markdown(tables.beyond(made, references)),
        ]
    found = [tables.markdown(tables.trials(made, experiment))]
    if experiment == "gevp":
        found += [
            "By ν, first instance (Figure 4):\n",
            tables.markdown(tables.powers(made, "gevp")),
            "### The dual step of the paper's runs\n",
            EVIDENCE,
            tables.markdown(dual_step_evidence.table()),
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
        "ours, σ_1/√(k+1)": paper_claims.answers(_with_rules(runs, "paper_runs")),
        "ours, Algorithm 1": paper_claims.answers(_with_rules(runs, "paper_text", "paper")),
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
    return f"## The paper's claims\n\n{tables.markdown(rows)}\n{CLAIMS}"


def _with_rules(runs: Sequence[Run], *rules: str) -> list[Run]:
    return [run for run in runs if run.config["rule"] in rules]


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
