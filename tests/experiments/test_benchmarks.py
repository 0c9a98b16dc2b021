"""A small version of every comparison; peers that are not installed are left out."""

import signal
from pathlib import Path

import pytest
import torch

from experiments.atomic_files import write_csv
from experiments.benchmarks import (
    benchmark_claims,
    benchmark_report,
    charts,
    families,
    peers,
    profile,
    robust,
    ruler,
    scaling,
    solver_comparison,
    summary,
    tasks,
    timed_run,
)
from experiments.benchmarks.outcome_table import COLUMNS, RESULTS, read
from experiments.benchmarks.peers import ours
from experiments.problems.deterministic import qp
from torch_powalm import Problem, power_alm, prox


def small_tasks() -> dict[str, timed_run.Task]:
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(30, 10, generator=generator).softmax(1)
    return {
        "gevp": tasks.gevp(0, n=12),
        "qp": tasks.qp(0, n=12, m=3),
        "clustering": tasks.clustering(0, points, 1e-2, r=4, s=3),
    }


@pytest.mark.parametrize("name", ["gevp", "qp", "clustering"])
@pytest.mark.parametrize("autograd", [False, True])
def test_ours_passes_the_ruler(name: str, autograd: bool) -> None:
    outcome = timed_run.run(ours.solve, small_tasks()[name], 30.0, autograd=autograd)
    assert outcome.reached
    assert outcome.measured is not None
    assert outcome.measured.multiplier == "own"
    assert outcome.gradient_calls > 0


@pytest.mark.parametrize("name", ["gevp", "qp", "clustering"])
def test_least_squares_multipliers_are_no_worse_than_those_of_the_solution(name: str) -> None:
    task = small_tasks()[name]
    problem = task.plain()
    solution = power_alm(problem, task.x_1, eps_phi=1e-8, eps_A=1e-8)
    measured = ruler.measure(problem, ruler.Answer(solution.x), 1e-9)
    assert measured.multiplier == "least squares"
    assert measured.dual <= 1.1 * solution.residuals.dual + 1e-9


def test_least_squares_multipliers_respect_signs_and_bounds() -> None:
    """min −x_1 + x_2, x_1 ≤ 1 as an inequality, x_2 ≥ 0 as a bound: y = 1 at (1, 0)."""
    problem = Problem(lambda x: x[1] - x[0], inequality=lambda x: x[:1] - 1, g=prox.Box(0.0, 5.0))
    x = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert ruler.best_multipliers(problem, x, 1e-6).tolist() == pytest.approx([1.0])
    measured = ruler.measure(problem, ruler.Answer(x + 1e-9), 1e-6)
    assert max(measured.primal, measured.dual) <= 1e-6
    away = ruler.measure(problem, ruler.Answer(x - torch.tensor([0.5, 0.0])), 1e-6)
    assert away.dual == pytest.approx(1.0)


def test_complementarity_may_be_a_product_or_a_natural_residual() -> None:
    """min −25 x_1 subject to x_1 ≤ 1: y = 25, whatever its product with a tiny violation."""
    problem = Problem(lambda x: -25 * x.sum(), inequality=lambda x: x - 1)
    for x, eps, passes in ((1 + 9e-5, 1e-4, True), (1 - 9e-5, 1e-4, True), (1 - 2e-4, 1e-4, False)):
        point = torch.tensor([x], dtype=torch.float64)
        for y in (None, torch.tensor([25.0], dtype=torch.float64)):
            found = ruler.measure(problem, ruler.Answer(point, y), eps)
            assert (max(found.primal, found.dual) <= eps) == passes
    negative = ruler.measure(
        Problem(lambda x: x.sum(), inequality=lambda x: x - 1),
        ruler.Answer(torch.ones(1, dtype=torch.float64), -torch.ones(1, dtype=torch.float64)),
        1e-4,
    )
    assert negative.dual == pytest.approx(1.0)


def test_settings_are_chosen_in_all_scalings_and_time_outs_stand() -> None:
    def solve(
        problem: object, x: torch.Tensor, eps: float, clock: timed_run.RunClock, k: int
    ) -> None:
        raise timed_run.UnsuitedError("it ran")

    peer = robust.Peer("mdmm", solve, {"first": {"k": 0}, "second": {"k": 1}})
    kinds = ("as it is", "objective x 1000")
    statuses = {"first": ("reached", "time-out"), "second": ("reached", "reached")}
    tried = [
        {"method": "mdmm", "setting": name, "scaling": kind, "status": status, "cpu": "1.0"}
        for name, found in statuses.items()
        for kind, status in zip(kinds, found, strict=True)
    ]
    assert robust.best_setting(peer, tried) == "second"
    assert robust.best_setting(peer, []) == "first"
    rows = robust.compare("sphere", 3, 3, tried, [peer], ())
    assert [(row["scaling"], row["method"], row["status"]) for row in rows] == [
        ("as it is", "mdmm", "cannot: it ran"),
        ("as it is", "mdmm, tuned", "cannot: it ran"),
        ("objective x 1000", "mdmm", "time-out of its trial"),
        ("objective x 1000", "mdmm, tuned", "cannot: it ran"),
        ("constraints x 1000", "mdmm", "cannot: it ran"),
        ("constraints x 1000", "mdmm, tuned", "cannot: it ran"),
    ]


def test_a_method_that_fails_is_a_row_and_not_an_exception() -> None:
    def fails(*args: object) -> ruler.Answer:
        raise ValueError("no")

    def refuses(*args: object) -> ruler.Answer:
        raise timed_run.UnsuitedError("too large")

    def idles(
        problem: object, x: torch.Tensor, eps: float, clock: timed_run.RunClock
    ) -> ruler.Answer:
        while True:
            clock.check(x)

    task = small_tasks()["qp"]
    assert timed_run.run(fails, task, 1.0, autograd=True).status == "error: ValueError: no"
    assert timed_run.run(refuses, task, 1.0, autograd=True).status == "cannot: too large"
    outcome = timed_run.run(idles, task, 0.1, autograd=True)
    assert outcome.status == "time-out"
    assert outcome.measured is not None


def test_no_timer_of_the_cpu_clock_runs_and_methods_without_a_clock_are_interrupted() -> None:
    """While one runs, Linux renews the CPU clock at its ticks only, and pauses are counted."""
    timers = []

    def never_ends(*args: object) -> None:
        timers.extend(map(signal.getitimer, (signal.ITIMER_PROF, signal.ITIMER_VIRTUAL)))
        while True:
            sum(range(1000))

    outcome = timed_run.run(never_ends, small_tasks()["qp"], 0.1, autograd=False)
    assert timers == [(0.0, 0.0), (0.0, 0.0)]
    assert outcome.status == "time-out"
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_missing_peer_is_said_with_its_reason() -> None:
    reason = peers.load("does_not_exist")
    assert isinstance(reason, str)
    assert reason.startswith("not installed: ModuleNotFoundError")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", peers.PEERS)
def test_peers_run_on_a_small_problem(name: str) -> None:
    module = peers.load(name)
    if isinstance(module, str):
        pytest.skip(module)
    timed_run.warm_up()  # an interrupt within torch's own imports would leave them broken
    task = small_tasks()["qp"]
    for settings in module.METHODS.values():
        autograd = "hand" not in module.ORACLES
        arguments = next(iter(settings.values()))
        outcome = timed_run.run(module.solve, task, 1.0, autograd=autograd, **arguments)
        assert outcome.measured is not None or outcome.status == "time-out"
        assert not outcome.status.startswith("error"), outcome.status


@pytest.mark.filterwarnings("ignore")
def test_the_report_is_written_from_small_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed_run.warm_up()  # as above: the budgets are short
    plan = tasks.Plan(lambda seed: tasks.gevp(seed, n=12), 1, 1, 0.2, 0.05, ("hand",))
    rows = solver_comparison.trials(plan, ["scipy", "does_not_exist"])
    rows += solver_comparison.finals(plan, rows, ["scipy"])
    for row in rows:
        row["task"] = "GEVP n=500"
    results = tmp_path / "benchmarks"
    write_csv(results / "deterministic.csv", rows, COLUMNS)
    found = []
    monkeypatch.setattr(robust, "SCALINGS", {"as it is": families.SCALINGS["as it is"]})
    for family in families.FAMILIES:
        found += robust.compare(family, 1, 0, [], [], (1.0,), budget=5.0)  # ours
    peer = next((p for p in robust.installed(["alpaqa"])), None)  # not installed everywhere
    if peer is not None:
        peer = peer._replace(settings=dict(list(peer.settings.items())[:2]))
        tried = robust.trials("sphere", [peer], budget=0.02)
        found += robust.compare("sphere", 1, 2, tried, [peer], (), budget=0.02)
    others = {row["method"] for row in found} - {"ours ν = 1"}
    assert bool(others) == (peer is not None)
    own = [row["own_status"] for row in found if row["method"] == "ours ν = 1"]
    assert own.count("converged") == len(families.FAMILIES)
    write_csv(results / "robust.csv", found, robust.COLUMNS)
    sizes = scaling.clusters(30, 10, 1) + scaling.clusters(60, 10, 1)
    sizes += scaling.constraints(10, 2) + scaling.constraints(20, 2)
    write_csv(results / "scaling.csv", sizes, scaling.COLUMNS)
    columns = ("ratio_to_floor", "first_quartile", "third_quartile")
    methods_of_a = ("floor", "ours nu=1", "cooper")
    steps = [{"case": "a", "method": name} | dict.fromkeys(columns, "1.0") for name in methods_of_a]
    write_csv(tmp_path / "overhead.csv", steps)
    charts.draw(results)
    text = benchmark_report.text(results)
    assert "## Summary" in text
    assert "not installed" in text
    for name in ("deterministic", "robust", "scaling"):
        assert (results / f"{name}.png").stat().st_size > 1000


def test_a_task_that_ours_misses_is_said_to_be_missed() -> None:
    rows = read(RESULTS / "deterministic.csv")
    for row in rows:
        if row["method"] == "ours ν = 1" and row["stage"] == "final":
            row["status"] = "not reached"
            break
    lines = {line["claim"]: line for line in benchmark_claims.answers(rows, [], [])}
    for what in (
        "GEVP n=500: at most 3 times alpaqa, hand-written oracles",
        "GEVP n=500: ahead of every other Python peer",
        "GEVP n=500: 10 times fewer gradients than the paper's best",
    ):
        assert lines[what]["holds"] == "no"
        assert lines[what]["evidence"] == "ours ν = 1 solved 2 of 3"
    first = summary.summary_lines(rows, [], [])[0]
    assert first["task"] == "GEVP n=500, hand-written oracles"
    assert (first["ν = 1 / best peer"], first["first"]) == ("ours ν = 1 solved 2 of 3", "no")


def test_a_peer_that_is_not_installed_is_not_beaten() -> None:
    rows = [row for row in read(RESULTS / "deterministic.csv") if "ours" in row["method"]]
    row = dict(rows[0], method="cyipopt", stage="trial", status="not installed: ImportError")
    lines = benchmark_claims.answers([*rows, row], [], [])
    others = next(line for line in lines if line["claim"].startswith("GEVP n=500: ahead"))
    assert (others["holds"], others["evidence"]) == ("not measured", "no other peer was run")


def test_slope_is_the_exponent() -> None:
    assert scaling.slope([1, 10, 100], [3, 300, 30000]) == pytest.approx(2.0)


def test_a_profile_gives_every_part_its_share() -> None:
    problem, x = qp(0, n=90, m=3)  # fewer unknowns take Newton steps
    found = profile.shares(problem, x, solves=1)
    assert sum(found.values()) == pytest.approx(1.0)
    assert all(found[part] > 0 for part in profile.PARTS.values())
