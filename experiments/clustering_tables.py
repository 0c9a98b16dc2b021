"""Tables of clusterings: one row a run, medians over the instances, and the clusters' quality."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from experiments import paper_numbers as paper
from experiments.run_folder import Run
from experiments.tables import (
    MISSING,
    RULES,
    Row,
    average,
    count,
    ends_on_violation,
    order,
    ratio,
    small,
    spread,
    whole,
)

SCORES = {"accuracy": "accuracy", "nmi": "NMI", "ari": "ARI"}  # of clusters
LIMIT = 1500  # the paper's bound N on the iterations of a subproblem
EPS = 1e-4  # its tolerance of the violation


def single_runs(runs: Sequence[Run]) -> list[Row]:
    """One row for each run: cost, residuals and quality of the clusters."""
    rows = []
    for run in sorted(runs, key=lambda run: (run.config["name"], run.config["case"], order(run))):
        case, nu = run.config["case"], run.config["nu"]
        found, k_means = run.run["clusters"], run.run["clusters"]["k_means"]
        reference = paper.counts(case).get(nu)
        rows.append(
            {
                "data": case.removeprefix("clustering_"),
                "method": f"{run.config['method']}, {run.config['rule']}",
                "ν": f"{nu:g}",
                "status": run.run["status"],
                "iterations": whole(run.result["inner_iterations"]),
                "paper": whole(reference),
                "ratio": ratio(run.result["inner_iterations"], reference),
                "gradients": whole(run.result["gradient_calls"]),
                "‖A‖": small(run.result["primal_residual"]),
                "dual": small(run.result["dual_residual"]),
                "objective": f"{run.result['objective']:.2f}",
                "accuracy": f"{found['accuracy']:.3f}",
                "NMI": f"{found['nmi']:.3f}",
                "ARI": f"{found['ari']:.3f}",
                "k-means accuracy": f"{k_means['accuracy']:.3f}",
                "k-means NMI": f"{k_means['nmi']:.3f}",
                "k-means ARI": f"{k_means['ari']:.3f}",
            }
        )
    return rows


def powers(runs: Sequence[Run]) -> list[Row]:
    """One row for each ν and dual step of the clusterings of one data set: median and range."""
    rows = []
    for nu, rule in sorted({(run.config["nu"], run.config["rule"]) for run in runs}):
        made = [run for run in runs if (run.config["nu"], run.config["rule"]) == (nu, rule)]
        good = [run for run in made if run.converged]
        case = made[0].config["case"]
        reference = paper.counts(case).get(nu)
        middle = median(count(run) for run in good) if good else None
        rows.append(
            {
                "ν": f"{nu:g}",
                "dual step": RULES[rule],
                "converged": f"{len(good)} of {len(made)}",
                "iterations, median (range)": _spread([count(run) for run in good]),
                "paper": whole(reference),
                "ratio": ratio(middle, reference),
                "subproblems": _spread([run.result["outer_iterations"] for run in good]),
                "paper's": MISSING if reference is None else whole(reference / LIMIT),
                "until ‖A‖ ≤ ε": _spread([until_feasible(run) for run in good]),
                "paper's until ‖A‖ ≤ ε": papers_until_feasible(case, nu),
                "ended by N": _spread([_at_limit(run) for run in good]),
                "ends on ‖A‖": ends_on_violation(
                    [(run.result["primal_residual"], run.result["dual_residual"]) for run in good]
                ),
                "‖A‖": small(average(run.result["primal_residual"] for run in good)),
                "dual": small(average(run.result["dual_residual"] for run in good)),
                "seconds": whole(average(run.run["seconds"] for run in good)),
            }
        )
    return rows


def qualities(runs: Sequence[Run]) -> list[Row]:
    """One row for each instance of a clustering: range of the scores over its runs."""
    rows = []
    for seed, rule in sorted({(run.run["seed"], run.config["rule"]) for run in runs}):
        made = [run for run in runs if (run.run["seed"], run.config["rule"]) == (seed, rule)]
        found = [run.run["clusters"] for run in made]
        row = {"instance": str(seed), "dual step": RULES[rule], "runs": str(len(made))}
        row["test accuracy of the network"] = f"{found[0]['network_accuracy']:.4f}"
        row["objective"] = _range([run.result["objective"] for run in made], 2)
        for score, name in SCORES.items():
            row[name] = _range([clusters[score] for clusters in found], 3)
            row[f"k-means {name}"] = _range([clusters["k_means"][score] for clusters in found], 3)
        rows.append(row)
    return rows


def papers_until_feasible(case: str, nu: float) -> str:
    """The subproblems among which the paper's violation falls below ε; "–" without a curve.

    Every subproblem of its clusterings takes N iterations, and its curves have every tenth point.
    """
    curve = paper.curves(case, "violation").get(nu, [])
    for (start, _), (end, low) in pairwise(curve):
        if low <= EPS:
            return f"{start / LIMIT + 1:.0f}–{end / LIMIT:.0f}"
    return MISSING


def until_feasible(run: Run) -> int:
    """The number of subproblems after which the violation stays below ε."""
    above = [k for k, value in enumerate(run.history["primal_residual"], 1) if value > EPS]
    return max(above, default=0) + 1


def _spread(values: Sequence[float]) -> str:
    """Median and range, or the value if there is one only."""
    return whole(values[0]) if len(values) == 1 else spread(values)


def _at_limit(run: Run) -> int:
    """The number of subproblems that ended because they had used N iterations."""
    return sum(row["inner_status"] == "max_iter" for row in run.tables["history"])


def _range(values: Sequence[float], digits: int) -> str:
    """Smallest and largest value, or the value if these look alike."""
    ends = [f"{value:.{digits}f}" for value in (min(values), max(values))]
    return "–".join(dict.fromkeys(ends))
