"""The numbers in the notes of the report, from the tables of runs and the paper's numbers."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from experiments import paper_numbers as paper
from experiments.clustering_tables import LIMIT, until_feasible
from experiments.run_folder import Run
from experiments.tables import MISSING, count

CLUSTERINGS = ("clustering_mnist", "clustering_fashion")
N = 10_000  # the paper's bound on the iterations of a subproblem of the QPs
EPS = 1e-3  # tolerances of QPs and GEVP
CLOSE = 1.5  # factor within which two means count as equal


def values(runs: Sequence[Run]) -> dict[str, str]:
    """All of them, by the name that stands for them in a note."""
    own = [run for run in runs if run.config["rule"] == "paper_runs"]
    return {
        **_clusterings(own),
        **_all_iterations([run for run in runs if run.config["rule"] == "paper_all_iterations"]),
        **_eigenvalue_problem(own),
        **_double_loop(own),
        **_triple_loop(own),
    }


def _clusterings(runs: Sequence[Run]) -> dict[str, str]:
    counts = [n for case in CLUSTERINGS for n in paper.counts(case).values()]
    multiples = sum(n % LIMIT == 0 for n in counts)
    found = {"clustering_multiples": f"{multiples} of {len(counts)}"}
    for case in CLUSTERINGS:
        gap = paper.curves(case, "suboptimality")[1.0][0][1]
        made = [run for run in runs if run.config["name"] == case]
        starts = [abs(r.result["start"]["objective"] - r.result["lagrangian"]) for r in made]
        counts = paper.counts(case)
        found |= {
            f"{case}_start": f"{gap:.0f}",
            f"{case}_our_start": _range(starts, "{:.0f}"),
            f"{case}_instances": str(len({run.run["seed"] for run in made})),
            f"{case}_runs": str(len(made)),
            f"{case}_feasible": _range(map(until_feasible, made), "{:.0f}"),
            f"{case}_part_07": f"{counts[0.7] / counts[1.0]:.2f}",
            f"{case}_part_08": f"{counts[0.8] / counts[1.0]:.2f}",
        }
    return found


def _all_iterations(runs: Sequence[Run]) -> dict[str, str]:
    parts = [
        f"{count(run):,.0f} for ν = {run.config['nu']:g} "
        f"({paper.counts(run.config['case'])[run.config['nu']]:,.0f} in the paper)"
        for run in sorted(runs, key=lambda run: run.config["nu"])
        if run.converged
    ]
    return {"all_iterations": ", ".join(parts) or MISSING}


def _eigenvalue_problem(runs: Sequence[Run]) -> dict[str, str]:
    gaps, violations = (
        paper.trials("gevp", "suboptimality"),
        paper.trials("gevp", "primal_residual"),
    )
    rows = [max(pair) for nu in gaps for pair in zip(gaps[nu], violations[nu], strict=True)]
    curves = [paper.curves("gevp", panel)[1.0][1:-1] for panel in ("violation", "suboptimality")]
    violation, gap = next(
        (low, high)
        for (_, low), (_, high) in zip(*curves, strict=True)
        if low <= EPS < high < 2 * EPS
    )
    ratios = _ratios(runs, "gevp")
    close = [nu for nu, ratio in ratios.items() if 1 / CLOSE <= ratio <= CLOSE]
    others = {nu: ratio for nu, ratio in ratios.items() if nu not in close}
    return {
        "gevp_rows": f"{sum(row <= EPS for row in rows)} of {len(rows)}",
        "gevp_violation": f"{violation:.1e}",
        "gevp_gap": f"{gap:.1e}",
        "gevp_instances": ", ".join(
            f"{len(made)} for ν = {nu:g}" for nu, made in _of(runs, "gevp")
        ),
        "gevp_close": ", ".join(f"{nu:g}" for nu in close) or MISSING,
        "gevp_others": ", ".join(f"{r:.2g} for ν = {nu:g}" for nu, r in others.items()) or MISSING,
    }


def _double_loop(runs: Sequence[Run]) -> dict[str, str]:
    trials = paper.trials("qp_double")
    small = [*trials[0.6], *trials[0.7]]
    whole = [cost / N for cost in small if cost % N == 0]
    duals = paper.trials("qp_double", "dual_residual")
    made = [run for nu, of_nu in _of(runs, "qp_double") if nu < 0.75 for run in of_nu]
    return {
        "double_multiples": f"{len(whole)} of {len(small)}",
        "double_subproblems": _range(whole, "{:.0f}"),
        "double_dual": _range([fmean(values) for values in duals.values()], "{:.1e}"),
        "double_ratios": _range(_ratios(runs, "qp_double").values(), "{:.2f}"),
        "double_our_subproblems": _range(
            [run.result["outer_iterations"] for run in made], "{:.0f}"
        ),
    }


def _triple_loop(runs: Sequence[Run]) -> dict[str, str]:
    theirs = paper.trials("qp_triple", "primal_residual")
    violations = {
        nu: fmean(run.result["primal_residual"] for run in made) / fmean(theirs[nu])
        for nu, made in _of(runs, "qp_triple")
    }
    apart = {nu: ratio for nu, ratio in violations.items() if not 0.5 <= ratio <= 2}
    return {
        "triple_ratios": _range(_ratios(runs, "qp_triple").values(), "{:.2f}"),
        "triple_apart": ", ".join(f"{r:.2g} for ν = {nu:g}" for nu, r in apart.items()) or MISSING,
    }


def _of(runs: Sequence[Run], name: str) -> list[tuple[float, list[Run]]]:
    """The converged runs on the instances of the paper's table, by ν."""
    made = [r for r in runs if r.config["name"] == name and r.run["seed"] < 10 and r.converged]
    nus = sorted(paper.trials(name).keys() & {run.config["nu"] for run in made})
    return [(nu, [run for run in made if run.config["nu"] == nu]) for nu in nus]


def _ratios(runs: Sequence[Run], name: str) -> dict[float, float]:
    """Mean count over the paper's, by ν."""
    trials = paper.trials(name)
    return {nu: fmean(map(count, made)) / fmean(trials[nu]) for nu, made in _of(runs, name)}


def _range(numbers: Iterable[float], form: str) -> str:
    """Smallest and largest number, "–" without any."""
    numbers = list(numbers)
    ends = [form.format(end(numbers)) for end in (min, max)] if numbers else []
    return " to ".join(dict.fromkeys(ends)) or MISSING
