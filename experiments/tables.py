"""Tables of finished runs beside the paper's numbers. They only read records."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median

from experiments import paper_numbers as paper
from experiments.atomic_files import write_csv, write_text
from experiments.run_folder import Run

Row = dict[str, str]
MISSING = "–"
RULES = {  # the paper's settings by dual step; the last one has our certificate, too
    "paper_runs": "σ_1/√(k+1)",
    "paper_text": "Algorithm 1",
    "paper": "Algorithm 1, our certificate",
}


def count(run: Run) -> float:
    """The paper's measure of cost: inner iterations for UPFAG and clustering, else gradients."""
    return float(run.result["inner_iterations" if by_iterations(run) else "gradient_calls"])


def by_iterations(run: Run) -> bool:
    """Whether `count` counts iterations."""
    return "clusters" in run.run or run.config["method"] == "UPFAG"


def clustering(runs: Sequence[Run]) -> list[Row]:
    """One row for each run: cost, residuals and quality of the clusters."""
    rows = []
    for run in sorted(runs, key=lambda run: (run.config["name"], run.config["case"], _order(run))):
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


def trials(runs: Sequence[Run], experiment: str, trials: int = 10) -> list[Row]:
    """One row for each ν of a table of the paper and each dual step: means over the first seeds."""
    theirs = paper.trials(experiment)
    quality = "suboptimality" if experiment == "gevp" else "dual_residual"
    rows = []
    first = [run for run in runs if run.run["seed"] < trials and run.config["nu"] in theirs]
    for nu, rule in sorted({(run.config["nu"], run.config["rule"]) for run in first}):
        of_nu = [run for run in first if (run.config["nu"], run.config["rule"]) == (nu, rule)]
        good = [run for run in of_nu if run.converged]
        mean = average(count(run) for run in good)
        rows.append(
            {
                "ν": f"{nu:g}",
                "dual step": RULES[rule],
                "paper": whole(fmean(theirs[nu])),
                "ours": whole(mean),
                "ratio": ratio(mean, fmean(theirs[nu])),
                "median (range)": spread([count(run) for run in good]),
                "converged": f"{len(good)} of {len(of_nu)}",
                "‖A‖": small(average(run.result["primal_residual"] for run in good)),
                "paper ‖A‖": small(fmean(paper.trials(experiment, "primal_residual")[nu])),
                quality.replace("_", " "): small(average(map(QUALITY[quality], good))),
                f"paper {quality.replace('_', ' ')}": small(
                    fmean(paper.trials(experiment, quality)[nu])
                ),
                "ends on ‖A‖": _ends_on_violation(
                    [(run.result["primal_residual"], QUALITY[quality](run)) for run in good]
                ),
                "paper ends on ‖A‖": _ends_on_violation(
                    zip(
                        paper.trials(experiment, "primal_residual")[nu],
                        paper.trials(experiment, quality)[nu],
                        strict=True,
                    )
                ),
                "gradients": whole(average(run.result["gradient_calls"] for run in good)),
                "seconds": whole(average(run.run["seconds"] for run in good)),
            }
        )
    return rows


def _ends_on_violation(pairs: Iterable[tuple[float, float]]) -> str:
    """In how many runs the violation is the larger of the two numbers that must be below eps."""
    larger = [primal > other for primal, other in pairs]
    return f"{sum(larger)} of {len(larger)}" if larger else MISSING


def powers(runs: Sequence[Run], experiment: str) -> list[Row]:
    """One row for each ν of a figure of the paper, first seed."""
    rows = []
    for run in sorted(runs, key=lambda run: (_order(run), run.config["rule"])):
        if run.run["seed"] > 0:
            continue
        reference = paper.counts(experiment).get(run.config["nu"])
        reached = count(run) if run.converged else None
        rows.append(
            {
                "ν": f"{run.config['nu']:g}",
                "dual step": RULES[run.config["rule"]],
                "paper": whole(reference),
                "ours": whole(reached),
                "ratio": ratio(reached, reference),
                "status": run.run["status"],
                "‖A‖": small(run.result["primal_residual"]),
                "dual": small(run.result["dual_residual"]),
            }
        )
    return rows


def beyond(runs: Sequence[Run], references: Sequence[Run]) -> list[Row]:
    """Gradient calls to the same tolerances: the paper's choice, and each of our solvers."""
    methods = sorted({run.config["method"] for run in runs})
    rows = []
    for case in sorted({run.config["case"] for run in runs}):
        for nu in sorted({run.config["nu"] for run in runs}):
            row = {"problem": case, "ν": f"{nu:g}"}
            for name in sorted({run.config["name"] for run in references}):
                if chosen := _select(references, case, nu, name=name):
                    method = f"the paper's choice ({chosen[0].config['method']})"
                    row[method] = outcome(chosen)
            for method in methods:
                row[method] = outcome(_select(runs, case, nu, method=method))
            rows.append(row)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    columns.sort(key=lambda key: (key in methods, key not in ("problem", "ν")))
    return [{key: row.get(key, MISSING) for key in columns} for row in rows]


QUALITY: dict[str, Callable[[Run], float]] = {
    "dual_residual": lambda run: float(run.result["dual_residual"]),
    "suboptimality": lambda run: abs(run.result["objective"] - run.result["f_star"]),
}


def markdown(rows: Sequence[Row]) -> str:
    """A Markdown table."""
    if not rows:
        return "No runs.\n"
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write(path: Path, rows: Sequence[Row]) -> None:
    """Write a table as Markdown and as CSV."""
    write_text(path.with_suffix(".md"), markdown(rows))
    write_csv(path.with_suffix(".csv"), rows)


def average(values: Iterable[float]) -> float | None:
    """The mean; None without values."""
    values = list(values)
    return fmean(values) if values else None


def spread(values: Sequence[float]) -> str:
    """Median and range."""
    if not values:
        return MISSING
    return f"{whole(median(values))} ({whole(min(values))}–{whole(max(values))})"


def outcome(runs: Sequence[Run]) -> str:
    """Median of the gradient calls of converged runs, and how many did not converge."""
    good = [run.result["gradient_calls"] for run in runs if run.converged]
    failed = f", {len(runs) - len(good)} of {len(runs)} failed" if len(good) < len(runs) else ""
    return (whole(median(good)) if good else MISSING) + failed


def whole(value: float | None) -> str:
    """A count."""
    return MISSING if value is None else f"{value:,.0f}"


def small(value: float | None) -> str:
    """A residual."""
    return MISSING if value is None else f"{value:.1e}"


def ratio(ours: float | None, theirs: float | None) -> str:
    """Ours over the paper's."""
    return MISSING if ours is None or not theirs else f"{ours / theirs:.2g}"


def _order(run: Run) -> tuple[float, int]:
    return run.config["nu"], run.run["seed"]


def _select(runs: Sequence[Run], case: str, nu: float, **keys: str) -> list[Run]:
    wanted = {"case": case, "nu": nu, **keys}
    return [
        run
        for run in runs
        if all(
            run.config[k] == v if k != "nu" else math.isclose(run.config[k], v)
            for k, v in wanted.items()
        )
    ]
