"""Tiny versions of the experiments run end to end."""

import csv
import shutil
import sys

import pytest
import torch

import torch_powalm
from experiments import defaults, demo_training
from experiments.benchmarks import distributed, overhead, soak, training_steps, version_comparison
from experiments.problems.deterministic import clustering, gevp, qp
from experiments.problems.small_trainings import PROBLEMS
from tests.experiments.tiny_runs import ROOT
from torch_powalm import power_alm


def test_the_training_demo_prints_a_table_and_draws_a_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["demo", "--epochs", "2", "--output", str(tmp_path)])
    demo_training.main()
    printed = capsys.readouterr().out
    assert all(name in printed for name in demo_training.METHODS)
    assert (tmp_path / "demo.png").stat().st_size > 10_000


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_training_of_the_defaults_experiment_runs(problem):
    setting = {"nu": 0.8, "beta_1": 0.1, "omega": 1.0, "sigma": "penalty"}
    outcome = defaults.run((problem, setting, 0, 1))
    assert 0 < outcome.loss < 10
    assert outcome == defaults.run((problem, setting, 0, 1))  # a seed fixes the run


def test_the_ranking_puts_feasible_settings_first():
    rows = [
        {"problem": p, "nu": nu, "beta_1": 1.0, "omega": 1.0, "sigma": "penalty"}
        | {"loss": loss, "violation": 0.0, "feasible": feasible}
        for p in PROBLEMS
        for nu, loss, feasible in ((0.5, 0.1, 2), (1.0, 0.2, 3))
    ]
    lines = defaults.ranking(rows, 3).splitlines()
    assert lines[2].startswith("| 1.0 | 1.0 | 1.0 | penalty | 9 of 9 | 1.00 |")
    assert lines[3].startswith("| 0.5 | 1.0 | 1.0 | penalty | 6 of 9 | 0.50 |")


@pytest.mark.parametrize("case", overhead.CASES)
def test_ours_and_the_floor_of_the_overhead_benchmark_make_the_same_steps(case):
    kind, batch = overhead.CASES[case]
    tasks = [kind(), kind()]
    steps = [overhead.floor(tasks[0], batch), overhead.ours(1.0)(tasks[1], batch)]
    for _ in range(3):
        for step in steps:
            step()
    for p, q in zip(tasks[0].params, tasks[1].params, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def copy_of_the_package(folder):
    """Another version: a copy whose update of the multipliers can be told apart."""
    shutil.copytree(ROOT / "torch_powalm", folder / "torch_powalm")
    path = folder / "torch_powalm" / "__init__.py"
    path.write_text(path.read_text() + "\nMARK = 1\n")
    return folder


def test_two_versions_of_the_package_live_side_by_side(tmp_path):
    before = {name for name in sys.modules if name.startswith("torch_powalm")}
    other = version_comparison.Version(copy_of_the_package(tmp_path))
    assert other.package is not torch_powalm
    assert other.package.MARK == 1
    assert not hasattr(torch_powalm, "MARK")
    assert sys.modules["torch_powalm"] is torch_powalm
    assert {name for name in sys.modules if name.startswith("torch_powalm")} == before
    with other.active():
        assert sys.modules["torch_powalm"] is other.package
        task = training_steps.Task()
        optimizer = training_steps.wrapped(task, False, 1.0, other.package)
        training_steps.step_of(optimizer, task, False)()
    assert type(optimizer) is other.package.PowerALMOptimizer
    assert not isinstance(optimizer, torch_powalm.PowerALMOptimizer)
    assert sys.modules["torch_powalm"] is torch_powalm


def test_two_versions_are_measured_in_the_same_rounds(tmp_path, monkeypatch, capsys):
    folder = copy_of_the_package(tmp_path)
    arguments = ["--against", str(folder), "--rounds", "2", "--steps", "1"]
    monkeypatch.setattr(sys, "argv", ["overhead", *arguments])
    monkeypatch.setattr(version_comparison, "EPOCH", 1)
    overhead.main()
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if ": " in line]
    assert [(line[0][2:], line[1]) for line in lines] == [
        (case, nu) for case in overhead.CASES for nu in ("1", "0.7")
    ]
    assert all(float(line[2]) > 0 for line in lines)


def test_a_version_to_compare_with_must_be_a_checkout(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["overhead", "--against", str(tmp_path)])
    with pytest.raises(SystemExit):
        overhead.main()
    message = f"--against must be a checkout with torch_powalm, got {tmp_path}"
    assert message in capsys.readouterr().err


def test_the_cost_of_two_ranks_is_measured(tmp_path, monkeypatch):
    output = tmp_path / "distributed.csv"
    arguments = ["--rounds", "2", "--steps", "1", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["distributed", *arguments])
    distributed.main()
    rows = list(csv.DictReader(output.read_text().splitlines()))
    assert [row["case"] for row in rows] == list(distributed.CASES)
    assert all(float(row["fraction_of_step"]) < 1 for row in rows)


@pytest.mark.filterwarnings("ignore")  # what Lightning says about small examples
def test_a_long_training_keeps_its_tensors(monkeypatch, tmp_path):
    output = tmp_path / "soak.csv"
    monkeypatch.setattr(sys, "argv", ["soak", "--steps", "1000", "--output", str(output)])
    soak.main()
    tensors = [int(row["tensors"]) for row in csv.DictReader(output.read_text().splitlines())]
    assert len(tensors) == 10
    assert tensors[0] == tensors[-1]  # after two updates, and after twenty


@pytest.mark.parametrize(
    ("make", "budget"),
    [
        (lambda: gevp(0, n=50), 400),
        (lambda: qp(0, n=20, m=4), 2000),
        # ν = 1 takes 2,900 to 6,500 gradients when x_1 changes in its last digit.
        (lambda: clustering(torch.randn(60, 3, generator=torch.Generator().manual_seed(0))), 8000),
    ],
    ids=["gevp", "qp", "clustering"],
)
@pytest.mark.parametrize("nu", [0.7, 1.0])
def test_the_papers_problems_are_solved_within_a_budget(make, budget, nu):
    problem, x_1 = make()
    solution = power_alm(problem, x_1, nu=nu, eps_phi=1e-4, eps_A=1e-4)
    assert solution.converged
    assert solution.gradient_calls <= budget
    again = problem.residuals(solution.x, solution.y)
    assert again == solution.residuals
    assert max(again.primal, again.dual) <= 1e-4


def test_the_gevp_finds_the_smallest_eigenvalue():
    problem, x_1 = gevp(3, n=80)
    solution = power_alm(problem, x_1, eps_phi=1e-6, eps_A=1e-6)
    smallest = torch.linalg.eigvalsh(problem.oracle.f_by_hand.Q)[0].item()
    assert solution.objective == pytest.approx(0.5 * smallest, rel=1e-5)
    assert solution.y.item() == pytest.approx(-0.5 * smallest, rel=1e-4)  # ∇f + 2yx = 0
