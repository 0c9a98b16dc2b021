"""The paper's claims, each checked against finished runs: yes, no, or not run."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, pstdev
from typing import NamedTuple

from scipy.stats import spearmanr

from experiments import paper_numbers as paper
from experiments.run_folder import Run
from experiments.tables import count, whole

INSTANCES = 10  # instances in the paper's tables
# How many suffice for a verdict: on the GEVP they differ by much less than the factor of the claim.
ENOUGH = {"qp_double": 5, "qp_triple": 5, "gevp": 2}
HALF = (0.7, 0.8, 1.0)  # values of ν in the claim on clusterings; one instance suffices
UPFAG_GRADIENTS = 3  # of an iteration without backtracks
POWERS = {  # values of ν in the tables that the claims are about
    "qp_double": (0.6, 0.7, 0.8, 0.9, 1.0),
    "qp_triple": (0.6, 0.7, 0.8, 0.9, 1.0),
    "gevp": (0.4, 1.0),
}


class Answer(NamedTuple):
    """A claim of the paper and the verdict of our runs.

    Args:
        claim: what the paper says.
        verdict: "yes", "no", "not run", or for which powers.
        evidence: the numbers behind it.
    """

    claim: str
    verdict: str
    evidence: str


def papers_runs() -> list[Run]:
    """The trials of the paper's tables and the counts of its clusterings, in the form of runs."""
    found = []
    for name in POWERS:
        columns = [paper.trials(name, column) for column in ("count", "primal_residual")]
        for nu, counts in columns[0].items():
            for seed, (cost, primal) in enumerate(zip(counts, columns[1][nu], strict=True)):
                found.append(_papers_run(name, nu, seed, cost, primal))
    for name in ("clustering_mnist", "clustering_fashion"):
        found += [_papers_run(name, nu, 0, cost) for nu, cost in paper.counts(name).items()]
    return found


def _papers_run(name: str, nu: float, seed: int, cost: float, primal: float = 0.0) -> Run:
    upfag = name not in ("gevp", "qp_triple")
    config = {"name": name, "nu": nu, "method": "UPFAG" if upfag else "", "rule": "paper_runs"}
    gradients = UPFAG_GRADIENTS * cost if upfag else cost
    result = {"inner_iterations": cost, "gradient_calls": gradients, "primal_residual": primal}
    return Run({"config": config, "seed": seed, "status": "converged", "result": result})


def answers(runs: Sequence[Run]) -> list[Answer]:
    """All claims; the evidence says how many instances were run if these are not all."""
    found = [
        (half(runs, "clustering_mnist", "MNIST"), ()),
        (half(runs, "clustering_fashion", "Fashion-MNIST"), ()),
        (quarter(runs), ("qp_double",)),
        (violation(runs, "qp_double", "double loop"), ("qp_double",)),
        (violation(runs, "qp_triple", "triple loop"), ("qp_triple",)),
        (magnitude(runs), ("gevp",)),
        (steadier(runs), ("qp_double", "qp_triple")),
        (slower(runs), ("qp_double", "qp_triple")),
    ]
    return [
        answer._replace(evidence="; ".join(filter(None, (answer.evidence, _partial(runs, of)))))
        for answer, of in found
    ]


def _partial(runs: Sequence[Run], experiments: Sequence[str]) -> str:
    counts = {name: len(_seeds(runs, name)) for name in experiments}
    return ", ".join(
        f"{name} over {n} of {INSTANCES} instances"
        for name, n in counts.items()
        if ENOUGH[name] <= n < INSTANCES
    )


def half(runs: Sequence[Run], experiment: str, data: str) -> Answer:
    """Both ν = 0.7 and ν = 0.8 need less than half the iterations of ν = 1."""
    claim = f"ν of 0.7–0.8 needs less than half the iterations of ν = 1 on {data}"
    means = _means(runs, experiment, HALF)
    answer = _answer(claim, means, lambda: max(means[0.7], means[0.8]) < 0.5 * means[1.0])
    of_one = [nu for nu in HALF[:2] if means and means[nu] < 0.5 * means[1.0]]
    if answer.verdict == "no" and of_one:
        answer = answer._replace(verdict=f"for ν = {of_one[0]:g} only")
    seeds = len(_seeds(runs, experiment))
    return answer._replace(
        evidence=f"{answer.evidence}; mean of {seeds}" if seeds > 1 else answer.evidence
    )


def quarter(runs: Sequence[Run]) -> Answer:
    """At ν = 0.8 the mean is at most three quarters of that at ν = 1."""
    means = _means(runs, "qp_double", (0.8, 1.0))
    claim = "ν = 0.8 needs 25 % fewer iterations than ν = 1 on QPs"
    return _answer(claim, means, lambda: means[0.8] <= 0.75 * means[1.0])


def violation(runs: Sequence[Run], experiment: str, loop: str) -> Answer:
    """The mean violation rises with ν: rank correlation at least 0.9, as in the paper's table."""
    claim = f"a smaller ν gives a smaller constraint violation ({loop})"
    nus = POWERS[experiment]
    found = {nu: [run for run in _of(runs, experiment, nu) if run.converged] for nu in nus}
    if not all(found.values()):
        return _unanswered(claim, runs, experiment, nus)
    means = {nu: fmean(run.result["primal_residual"] for run in found[nu]) for nu in nus}
    evidence = ", ".join(f"ν = {nu:g}: {mean:.1e}" for nu, mean in means.items())
    rank = float(spearmanr(nus, list(means.values())).statistic)
    verdict = "yes" if rank > 0.9 - 1e-9 else "no"
    return Answer(claim, verdict, f"{evidence}; rank correlation {rank:.1f}")


def magnitude(runs: Sequence[Run]) -> Answer:
    """At ν = 0.4 the mean is at most a tenth of that at ν = 1."""
    means = _means(runs, "gevp", (0.4, 1.0))
    claim = "ν = 0.4 needs an order of magnitude fewer gradients than ν = 1 on the GEVP"
    return _answer(claim, means, lambda: means[0.4] <= 0.1 * means[1.0])


def steadier(runs: Sequence[Run]) -> Answer:
    """The relative deviation of its counts is smaller."""
    claim = "the triple loop is steadier than the double loop on QPs"
    parts, wins = [], 0
    for nu in POWERS["qp_double"]:
        deviations = []
        for experiment in ("qp_double", "qp_triple"):
            counts = [count(run) for run in _of(runs, experiment, nu) if run.converged]
            if len(counts) < 2:
                return _unanswered(claim, runs, experiment, (nu,))
            deviations.append(pstdev(counts) / fmean(counts))
        wins += deviations[1] < deviations[0]
        parts.append(f"ν = {nu:g}: {deviations[1]:.0%} against {deviations[0]:.0%}")
    return _by_power(claim, wins, "relative deviation of the counts, " + ", ".join(parts))


def slower(runs: Sequence[Run]) -> Answer:
    """It needs more gradients."""
    claim = "the triple loop is slower than the double loop on QPs"
    parts, wins = [], 0
    for nu in POWERS["qp_double"]:
        means = []
        for experiment in ("qp_double", "qp_triple"):
            good = [run for run in _of(runs, experiment, nu) if run.converged]
            if not good:
                return _unanswered(claim, runs, experiment, (nu,))
            means.append(fmean(run.result["gradient_calls"] for run in good))
        wins += means[1] > means[0]
        parts.append(f"ν = {nu:g}: {whole(means[1])} against {whole(means[0])}")
    return _by_power(claim, wins, "mean gradients, " + ", ".join(parts))


def _by_power(claim: str, wins: int, evidence: str) -> Answer:
    """Yes or no if this holds for all powers or for none, else for how many."""
    powers = len(POWERS["qp_double"])
    verdict = {0: "no", powers: "yes"}.get(wins, f"for {wins} of {powers} powers")
    return Answer(claim, verdict, evidence)


def _of(runs: Sequence[Run], experiment: str, nu: float) -> list[Run]:
    """The runs on those instances that were run with every ν of the claim; none if too few."""
    found = [run for run in runs if (run.config["name"], run.config["nu"]) == (experiment, nu)]
    seeds, enough = _seeds(runs, experiment), ENOUGH.get(experiment, 1)
    return [run for run in found if run.run["seed"] in seeds] if len(seeds) >= enough else []


def _seeds(runs: Sequence[Run], experiment: str) -> set[int]:
    made = {(run.config["nu"], run.run["seed"]) for run in runs if run.config["name"] == experiment}
    powers = POWERS.get(experiment, HALF)
    return {k for k in range(INSTANCES) if all((nu, k) in made for nu in powers)}


def _means(runs: Sequence[Run], experiment: str, nus: Sequence[float]) -> dict[float, float]:
    """Mean count by ν, infinite if a run did not converge; empty if a ν was not run."""
    means = {}
    for nu in nus:
        if found := _of(runs, experiment, nu):
            reached = all(run.converged for run in found)
            means[nu] = fmean(map(count, found)) if reached else float("inf")
    return means if len(means) == len(nus) else {}


def _answer(claim: str, means: Mapping[float, float], holds: Callable[[], bool]) -> Answer:
    if not means:
        return Answer(claim, "not run", "")
    evidence = ", ".join(
        f"ν = {nu:g}: " + (whole(mean) if mean < float("inf") else "not all converged")
        for nu, mean in means.items()
    )
    return Answer(claim, "yes" if holds() else "no", evidence)


def _unanswered(claim: str, runs: Sequence[Run], experiment: str, nus: Sequence[float]) -> Answer:
    """The verdict without enough converged runs: not run, or no because runs failed."""
    found = [_of(runs, experiment, nu) for nu in nus]
    if not all(found):
        return Answer(claim, "not run", "")
    failed = [
        f"ν = {nu:g}: {sum(not run.converged for run in made)} of {len(made)} failed"
        for nu, made in zip(nus, found, strict=True)
    ]
    return Answer(claim, "no", ", ".join(failed))
