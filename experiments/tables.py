"""Tables of finished runs beside the paper's numbers. They only read records."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median

from scipy.stats import mannwhitneyu

from experiments import paper_numbers as paper
from experiments.atomic_files import write_csv, write_text
from experiments.run_folder import Run

Row = dict[str, str]
MISSING = "–"
RULES = {  # the paper's settings by dual step and by what ends a run or its subproblems
    "paper_runs": "σ_1/√(k+1)",
    "paper_all_iterations": "σ_1/√(k+1), N iterations each",
    "paper_text": "Algorithm 1",
    "paper": "Algorithm 1, our certificate",
}


def with_rule(runs: Sequence[Run], *rules: str) -> list[Run]:
    """The runs of every experiment with the first of these rules that it was run with."""
    chosen = {}
    for run in runs:
        name, rule = run.config["name"], run.config["rule"]
        if rule in rules:
            chosen[name] = min(chosen.get(name, rule), rule, key=rules.index)
    return [run for run in runs if chosen.get(run.config["name"]) == run.config["rule"]]


def papers_choice(runs: Sequence[Run]) -> list[Run]:
    """The runs with the paper's settings, with the dual step of its runs where there are such."""
    return with_rule(runs, "paper_runs", "paper")


def count(run: Run) -> float:
    """The paper's measure of cost: inner iterations for UPFAG and clustering, else gradients."""
    return float(run.result["inner_iterations" if by_iterations(run) else "gradient_calls"])


def by_iterations(run: Run) -> bool:
    """Whether `count` counts iterations."""
    return "clusters" in run.run or run.config["method"] == "UPFAG"


def trials(runs: Sequence[Run], experiment: str, trials: int = 10) -> list[Row]:
    """One row for each ν of a table of the paper and each dual step: counts of the first seeds."""
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
                "ends on ‖A‖": ends_on_violation(
                    [(run.result["primal_residual"], QUALITY[quality](run)) for run in good]
                ),
                "paper ends on ‖A‖": ends_on_violation(
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


def residuals(runs: Sequence[Run], experiment: str, trials: int = 10) -> list[Row]:
    """Violation and the other residual for each ν and dual step, beside the paper's trials.

    Each with median and range, the ratio of the means, and the p-value of the two-sided rank-sum
    test: of values at least as far apart if ours and the paper's were drawn alike.
    """
    quality = "suboptimality" if experiment == "gevp" else "dual_residual"
    theirs = {name: paper.trials(experiment, name) for name in ("primal_residual", quality)}
    first = [r for r in runs if r.run["seed"] < trials and r.config["nu"] in theirs[quality]]
    rows = []
    for nu, rule in sorted({(run.config["nu"], run.config["rule"]) for run in first}):
        of_nu = [run for run in first if (run.config["nu"], run.config["rule"]) == (nu, rule)]
        good = [run for run in of_nu if run.converged]
        row = {"ν": f"{nu:g}", "dual step": RULES[rule]}
        for name, label in (("primal_residual", "‖A‖"), (quality, quality.replace("_", " "))):
            ours, others = [QUALITY[name](run) for run in good], theirs[name][nu]
            row[label] = spread(ours, small)
            row[f"paper's {label}"] = spread(others, small)
            row[f"{label}, ratio"] = ratio(average(ours), fmean(others))
            row[f"{label}, p"] = f"{mannwhitneyu(ours, others).pvalue:.2g}" if ours else MISSING
        rows.append(row)
    return rows


def ends_on_violation(pairs: Iterable[tuple[float, float]]) -> str:
    """In how many runs the violation is the larger of the two numbers that must be below eps."""
    larger = [primal > other for primal, other in pairs]
    return f"{sum(larger)} of {len(larger)}" if larger else MISSING


def powers(runs: Sequence[Run], experiment: str) -> list[Row]:
    """One row for each ν of a figure of the paper, first seed."""
    rows = []
    for run in sorted(runs, key=lambda run: (order(run), run.config["rule"])):
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
    "primal_residual": lambda run: float(run.result["primal_residual"]),
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


def spread(values: Sequence[float], form: Callable[[float | None], str] | None = None) -> str:
    """Median and range, written as counts or by `form`."""
    if not values:
        return MISSING
    middle, low, high = ((form or whole)(f(values)) for f in (median, min, max))
    return f"{middle} ({low}–{high})"


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


def order(run: Run) -> tuple[float, int]:
    """ν, then the seed."""
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
