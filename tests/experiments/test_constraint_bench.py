"""ConstraintBench: its tasks, units, methods, runner and report."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from experiments.constraint_bench import bench_numbers, bench_table, constraints_report
from experiments.constraint_bench.bench_table import COLUMNS, Job
from experiments.constraint_bench.method import base_of, evaluate
from experiments.constraint_bench.methods import METHODS
from experiments.constraint_bench.methods.plain_methods import Penalty
from experiments.constraint_bench.methods.powalm_method import PowerALM
from experiments.constraint_bench.single_run import judge, run
from experiments.constraint_bench.splits import DEVELOPMENT, JUDGMENT, MIXED, draw
from experiments.constraint_bench.task import UNITS, in_units
from experiments.constraint_bench.tasks import TASKS
from experiments.data.tabular import TableSource
from tests.experiments.tiny_runs import ROOT

PEERS = {"cooper": "cooper", "hct": "humancompatible.train", "mdmm": "mdmm"}


def built(name, seed=0):
    return TASKS[name].build(torch.Generator().manual_seed(seed))


def test_the_halves_are_those_of_the_draw_and_balanced():
    assert sorted(DEVELOPMENT) == draw(TASKS)
    assert sorted([*DEVELOPMENT, *JUDGMENT]) == sorted(TASKS)
    assert len(TASKS) >= 14
    for half in (DEVELOPMENT, JUDGMENT):
        assert {TASKS[name].kind for name in half} == {task.kind for task in TASKS.values()}
        assert sum(MIXED in name for name in half) == 1
    assert sum(task.steps <= 300 for task in TASKS.values()) >= 2


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_complete_and_a_gradient_of_each_part_reaches_the_parameters(name):
    training, task = built(name), TASKS[name]
    assert len(training.batches) == task.steps
    loss, vectors, _ = evaluate(training, training.batches[0])
    for c, value in zip(training.constraints, vectors, strict=True):
        assert value.shape == (c.size,)
        assert c.tolerance > 0
    for part in (loss, *(vector.square().sum() for vector in vectors)):
        training.model.zero_grad()
        part.backward(retain_graph=True)
        reached = [p.grad for p in training.model.parameters() if p.grad is not None]
        assert all(bool(grad.isfinite().all()) for grad in reached)
        starts_at_minimum = name == "short_finetune_kl"  # the divergence from itself
        assert starts_at_minimum or any(bool(grad.any()) for grad in reached)
    for split in ("train", "test"):
        assert math.isfinite(training.merit(split))
        assert set(training.violations(split)) == {c.name for c in training.constraints}


@pytest.mark.parametrize("name", TASKS)
def test_one_step_of_ours_changes_the_parameters(name):
    training, task = built(name), TASKS[name]
    before = [p.detach().clone() for p in training.model.parameters()]
    stepper = PowerALM()(training, base_of(task, "adam"))
    stepper.step(training.batches[0])
    assert any(
        not torch.equal(p, old) for p, old in zip(training.model.parameters(), before, strict=True)
    )


@pytest.mark.parametrize("name", ["adult_parity", "fashion_class_losses", "l0_budget"])
def test_equal_seeds_give_equal_trainings(name):
    first, second, other = built(name), built(name), built(name, seed=1)
    values = [evaluate(training, training.batches[3])[0] for training in (first, second, other)]
    assert values[0] == values[1] != values[2]


@pytest.mark.parametrize("units", list(UNITS))
@pytest.mark.parametrize("name", TASKS)
def test_units_multiply_what_methods_see_and_leave_what_is_reported(name, units):
    plain, factors = built(name), UNITS[units]
    scaled = in_units(plain, factors)
    loss, vectors, strict = evaluate(plain, plain.batches[0])
    loss_in, vectors_in, strict_in = evaluate(scaled, scaled.batches[0])
    assert loss_in == factors.loss * loss
    for value, value_in in zip([*vectors, *strict], [*vectors_in, *strict_in], strict=True):
        if value is not None:
            assert torch.equal(value_in, factors.constraints * value)
    assert judge(scaled, "trained", 0.0) == judge(plain, "trained", 0.0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["adult_parity", "pinn_heat_mixed_units"])
def test_every_method_makes_steps(name, method):
    if package := PEERS.get(method.split()[0]):
        pytest.importorskip(package)
    training, task = built(name), TASKS[name]
    for setting in METHODS[method].values():
        stepper = setting(training, base_of(task, "adam"))
        for batch in training.batches[:2]:
            stepper.step(batch)
        stepper.end_epoch()
        assert math.isfinite(training.merit("train"))


def test_a_batch_without_a_group_counts_as_satisfied():
    training = built("adult_opportunity")
    labels = TableSource("adult").load().train_labels
    negatives = (labels == 0).nonzero().squeeze(1)[:64]
    loss, (value,), _ = evaluate(training, negatives)
    assert torch.equal(value, torch.zeros(2))
    assert bool(loss.isfinite())


def test_a_run_that_fails_is_infeasible_and_says_why():
    def failing(training, base):
        raise RuntimeError("out of luck")

    outcome = run(TASKS["short_recall"], failing, seed=0)
    assert outcome.status == "RuntimeError: out of luck"
    assert not outcome.feasible


def test_a_penalty_run_is_reproducible_and_a_strong_one_is_feasible():
    outcomes = [run(TASKS["short_recall"], Penalty(100.0), seed=0) for _ in range(2)]
    assert outcomes[0]._replace(seconds=0) == outcomes[1]._replace(seconds=0)
    assert outcomes[0].feasible


def test_the_plan_has_grids_in_natural_units_only_and_no_loss_units_for_sgd():
    settings = {"powalm": ["recommended"], "penalty": ["a", "b"], "mdmm": ["recommended", "c"]}
    jobs = bench_table.plan(["t"], settings, list(UNITS), "sgd", 2)
    assert len(jobs) == len(set(jobs)) == 2 * (5 + 2 + 2 + 4)
    assert not [job for job in jobs if job.units.startswith("loss")]


def test_the_runner_resumes(tmp_path):
    command = [
        *(sys.executable, "-m", "experiments.constraint_bench.run_bench", f"output={tmp_path}"),
        *("half=judgment", "methods=[unconstrained]", "seeds=1", "units=[natural]"),
    ]
    table = tmp_path / "runs.csv"
    job = Job("short_recall", "unconstrained", "recommended", "natural", "adam", 0)
    finished = [job._replace(task=name) for name in JUDGMENT if name != "short_recall"]
    outcome = judge(built("short_recall"), "trained", 0.0)
    for done in finished:
        bench_table.append(table, done, outcome)
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "9 runs finished before, 1 to do" in result.stdout
    rows = {bench_table.job_of(row): row for row in bench_table.read(table)}
    assert set(rows) == {*finished, job}
    assert float(rows[job]["excess"]) > 1
    bench_table.forget(table, ["unconstrained"])
    assert bench_table.read(table) == []


def row(merit, excess, **changes):
    found = dict.fromkeys(COLUMNS, "") | {
        **{"task": "adult_parity", "method": "powalm", "setting": "recommended"},
        **{"units": "natural", "base": "adam", "seed": "0", "status": "trained"},
        **{"merit": str(merit), "test_merit": "1", "excess": str(excess), "test_excess": "2"},
    }
    return found | changes


def test_regret_is_against_the_best_feasible_run_of_the_same_seed():
    rows = [
        row(1.1, 0.5),
        row(1.0, 1.0, method="cooper"),
        row(0.5, 1.5, method="mdmm"),
        row(7.0, 0.0, seed="1"),
        row(0.01, 0.0, task="pinn_poisson"),
        row(0.02, 0.0, task="pinn_poisson", method="cooper"),
    ]
    runs = bench_numbers.with_regret(rows)
    regrets = {(run["task"], run["method"], run["seed"]): run.regret for run in runs}
    assert regrets["adult_parity", "powalm", "0"] == pytest.approx(0.1)
    assert regrets["adult_parity", "cooper", "0"] == 0
    assert regrets["adult_parity", "mdmm", "0"] == math.inf
    assert math.isnan(regrets["adult_parity", "powalm", "1"])  # no other method to compare with
    assert regrets["pinn_poisson", "cooper", "0"] == pytest.approx(0.01 / 0.05)
    assert bench_numbers.quantile(runs, 0.5) == pytest.approx(0.1)
    alone = [run for run in runs if run["seed"] == "1"]
    assert math.isnan(bench_numbers.quantile(alone, 0.5))
    assert bench_numbers.quantile(runs, 0.9) == math.inf


def test_hindsight_takes_feasibility_first_then_regret():
    rows = [
        row(1.0, 0.0, method="mdmm", setting="recommended"),
        row(9.0, 9.0, method="mdmm", setting="recommended", seed="1"),
        row(2.0, 0.0, method="mdmm", setting="damping 10"),
        row(2.0, 0.0, method="mdmm", setting="damping 10", seed="1"),
        row(3.0, 0.0, method="mdmm", setting="damping 100"),
        row(3.0, 0.0, method="mdmm", setting="damping 100", seed="1"),
    ]
    chosen = bench_numbers.tuned(bench_numbers.with_regret(rows))
    assert {run["setting"] for run in chosen} == {"damping 10"}


def test_the_report_follows_from_the_table():
    runs = bench_numbers.with_regret(bench_table.read(bench_table.RESULTS))
    assert constraints_report.text(runs) == constraints_report.REPORT.read_text()


@pytest.mark.parametrize("name", ["adult", "compas"])
def test_the_sample_of_a_table_is_clean(name):
    table = TableSource(name).load()
    assert len(table.train) == len(table.train_labels) == len(table.train_groups) == 4000
    assert table.train.shape[1] == table.test.shape[1] == len(table.features)
    for part in (table.train, table.test):
        assert bool(part.isfinite().all())
        assert part.abs().max() <= 4
    for column in (table.train_labels, table.test_groups):
        assert set(column.tolist()) == {0.0, 1.0}


def test_complete_files_are_read_from_a_folder(tmp_path):
    rest = "Bachelors, 13, Never-married, Sales, Husband, White"
    lines = [
        f"39, Private, 7, {rest}, Male, 2174, 0, 40, United-States, <=50K",
        f"20, State-gov, 7, {rest}, Female, 0, 0, 20, Cuba, >50K",
        f"50, ?, 7, {rest}, Female, 0, 0, 20, Cuba, >50K",
    ]
    folder = tmp_path / "adult"
    folder.mkdir()
    (folder / "adult.data").write_text("\n".join(lines) + "\n\n")
    (folder / "adult.test").write_text("|1x3 Cross validator\n" + f"{lines[1]}.\n")
    with np.errstate(invalid="ignore"):  # a column without variance
        table = TableSource("adult", str(tmp_path)).load()
    assert table.train_labels.tolist() == [0, 1]
    assert table.train_groups.tolist() == [0, 1]
    assert table.train[:, 0].tolist() == [1, -1]
    assert table.test[0, 0] == -1
    assert table.test_labels.tolist() == [1]


def test_bad_names_are_refused():
    with pytest.raises(ValueError, match="dataset must be adult or compas, got 'iris'"):
        TableSource("iris")
    with pytest.raises(ValueError, match="base must be adam or sgd, got 'lbfgs'"):
        base_of(TASKS["adult_parity"], "lbfgs")
