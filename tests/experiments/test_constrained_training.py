"""The constrained trainings, tiny: tasks, methods, records, report, cost of a step."""

import csv
import inspect
import json
import sys

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import get_method

from experiments import constrained_training as training
from experiments import hydra_cli, methods, run_folder, run_tables, train, training_report
from experiments.benchmarks import training_cost
from experiments.problems.neyman_pearson import NeymanPearson
from experiments.problems.orthonormal import Orthonormal
from tests.experiments.tiny_runs import ROOT, train_tiny


@pytest.mark.parametrize("experiment", training_report.EXPERIMENTS)
def test_an_experiment_runs_from_images_to_records(trained, experiment):
    runs = run_folder.read(trained / experiment)
    assert [r.config["label"] for r in runs] == ["penalty", "nu=0.8", "unconstrained"]
    for r in runs:
        assert r.history["epoch"] == [1, 2]
        for part in ("train", "val", "test"):
            assert r.result[f"{part}_loss"] == r.history[f"{part}_loss"][-1]
            assert 0 < r.result[f"{part}_loss"] < 5
            assert r.result[f"{part}_violation"] >= 0
        assert str(ROOT) not in json.dumps(r.run)
        assert str(trained) not in json.dumps(r.run)
    _, ours, unconstrained = runs
    assert ours.result["train_loss"] != unconstrained.result["train_loss"]
    if experiment == "orthonormal":
        assert ours.result["train_violation"] < unconstrained.result["train_violation"]


@pytest.mark.parametrize("experiment", training_report.EXPERIMENTS)
def test_the_best_candidate_on_validation_data_is_reported(trained, experiment):
    for made in run_folder.read(trained / experiment)[:2]:  # ours and the penalty
        (chosen,) = [c for c in made.tables["candidates"] if c["chosen"] == "True"]
        assert made.result["test_loss"] == float(chosen["test_loss"])
        others = [c for c in made.tables["candidates"] if c["chosen"] == "False"]
        assert others
        tolerance = made.config["task"]["tolerance"]
        for other in others:
            assert _score(chosen, tolerance) <= _score(other, tolerance)


def _score(row, tolerance):
    """Feasible before infeasible, then the loss or the violation, on validation data."""
    loss, violation = float(row["val_loss"]), float(row["val_violation"])
    feasible = violation <= tolerance
    return (not feasible, loss if feasible else violation)


def test_a_grid_has_a_candidate_for_every_combination():
    grid = methods.Cooper(choices={"augmented": [False, True], "dual_lr": [0.1, 1.0]})
    assert list(grid.candidates()) == [
        "augmented False, dual_lr 0.1",
        "augmented False, dual_lr 1.0",
        "augmented True, dual_lr 0.1",
        "augmented True, dual_lr 1.0",
    ]
    assert grid.candidates()["augmented True, dual_lr 0.1"] == methods.Cooper(
        augmented=True, dual_lr=0.1
    )
    assert methods.Penalty(2.0).candidates() == {"": methods.Penalty(2.0)}


def test_a_margin_makes_training_stricter_than_the_task():
    task = NeymanPearson((6,), 0.05, 0.0)
    labels, outputs = torch.tensor([6, 6, 0]), torch.zeros(3, 10)
    excess = task.tightened(0.02).strict(None, outputs, labels)
    torch.testing.assert_close(excess, task.strict(None, outputs, labels) + 0.02)
    assert Orthonormal(0.01).tightened(0.0) == Orthonormal(0.01)
    with pytest.raises(ValueError, match=r"margin must be 0 for equalities, got 0\.1"):
        Orthonormal(0.01).tightened(0.1)


def test_a_finished_training_is_not_made_again_and_a_seed_fixes_it(trained, tmp_path, capsys):
    train_tiny(trained, "orthonormal", "method=powalm")
    assert "finished before" in capsys.readouterr().out
    train_tiny(tmp_path, "orthonormal", "method.nu=0.8")
    (again,) = run_folder.read(tmp_path)
    assert again.result == run_folder.read(trained / "orthonormal")[1].result


def test_all_methods_see_the_same_weights_and_the_same_order():
    task, schedule = Orthonormal(0.01), training.Schedule(1, 64, 400, 16)
    images = training_cost.Source("fashion_mnist").load()
    first = []
    for method in (methods.Unconstrained(), methods.PowerALM(0.8, {}), methods.Penalty(1.0)):
        generator = torch.Generator().manual_seed(3)
        data = training.split(images, schedule, generator)
        model = training.Constrained(task, method, schedule, generator)
        batch = next(iter(training.batches(*data.train, 64, generator)))
        first.append((model.layers[0].weight.detach(), *batch))
    for other in first[1:]:
        assert all(torch.equal(a, b) for a, b in zip(first[0], other, strict=True))


def report(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["report", *map(str, arguments)])
    training_report.main()


def test_the_tables_have_a_row_for_each_method(trained, tmp_path, monkeypatch):
    report(monkeypatch, trained, "--output", tmp_path)
    for experiment in training_report.EXPERIMENTS:
        rows = (tmp_path / "tables" / f"training_{experiment}.csv").read_text().splitlines()
        assert [line.split(",")[0] for line in rows[1:]] == ["unconstrained", "penalty", "ν = 0.8"]
    for ending in ("png", "svg"):
        assert (tmp_path / "figures" / f"training.{ending}").stat().st_size > 10_000


def test_the_report_shows_its_figure(trained, tmp_path, monkeypatch):
    run_tables.keep(run_folder.read(trained), trained, tmp_path / "results")
    report(monkeypatch, tmp_path / "results", "--report", tmp_path / "TRAINING.md")
    assert "](results/figures/training.png)" in (tmp_path / "TRAINING.md").read_text()
    assert (tmp_path / "results/figures/training.png").stat().st_size > 10_000


def test_a_report_on_nothing_is_an_error(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        report(monkeypatch, tmp_path)
    assert end.value.code == 2
    assert capsys.readouterr().err == f"error: {tmp_path} has no finished training\n"


def test_the_cost_of_a_step_is_measured_for_every_method(tmp_path, monkeypatch):
    path = tmp_path / "cost.csv"
    argv = ["cost", "--rounds", "2", "--steps", "1", "--output", str(path)]
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(training_cost, "find_spec", lambda name: None)
    training_cost.main()
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == 2 * (len(training_cost.METHODS) - 1)
    assert all(float(row["ratio"]) > 0 for row in rows)


def test_cooper_is_left_out_with_a_message_where_it_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train, "find_spec", lambda name: None)
    train_tiny(tmp_path, "orthonormal", "method=cooper")
    assert "cooper-optim is missing" in capsys.readouterr().out
    assert not run_folder.read(tmp_path)


def test_cooper_trains_where_it_is_installed(tmp_path):
    pytest.importorskip("cooper")
    for experiment in training_report.EXPERIMENTS:
        train_tiny(tmp_path, experiment, "method=cooper")
    made = run_folder.read(tmp_path)
    assert [r.history["epoch"] for r in made] == [[1, 2]] * 2
    for r in made:  # the first penalty must suit the kind of the constraint
        mild = [c for c in r.tables["candidates"] if "dual_lr 1.0" not in c["settings"]]
        assert all(float(c["train_loss"]) < 10 for c in mild)


def test_the_false_negative_rate_and_its_proxy():
    task = NeymanPearson((6,), 0.05, 0.0)
    labels = torch.tensor([6, 6, 6, 6, 0])
    outputs = torch.zeros(5, 10)
    outputs[:3, 6] = 5.0
    outputs[3, 2] = 5.0  # one of four shirts is missed
    strict = task.strict(None, outputs, labels)
    torch.testing.assert_close(strict, torch.tensor([0.25 - 0.05]))
    p = outputs.softmax(1)[:4, 6]
    torch.testing.assert_close(
        task.proxy(None, outputs, labels), -p.log2().mean().reshape(1) - 0.05
    )
    assert task.proxy(None, outputs, labels) > strict
    torch.testing.assert_close(
        task.loss(outputs, labels), torch.nn.functional.cross_entropy(outputs[4:], labels[4:])
    )


def test_orthonormal_rows_have_no_violation():
    network = training.TwoLayer(16, 1e-3, torch.Generator().manual_seed(0))
    task = Orthonormal(0.01)
    assert task.proxy(network, None, None).abs().max() > 0.1
    with torch.no_grad():
        network.layers[2].weight.copy_(torch.linalg.qr(network.layers[2].weight.T)[0].T)
    assert task.proxy(network, None, None).shape == (task.size,)
    assert task.proxy(network, None, None).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["++schedule.n=9"], "n must be at least 10, got 9"),
        (["++schedule.n=6000"], "n must be at most 5000, got 6000"),
        (["schedule.epochs=0"], "epochs must be at least 1, got 0"),
        (["++schedule.lr=0"], "lr must be positive, got 0"),
        (["task.rate=1.5"], "rate must be in (0, 1), got 1.5"),
        (["task.group=[10]"], "group must hold some of the classes 0 to 9"),
        (["task.tolerance=-1"], "tolerance must be nonnegative, got -1"),
    ],
)
def test_bad_input_ends_in_one_line(tmp_path, capsys, overrides, message):
    with pytest.raises(SystemExit) as end:
        train_tiny(tmp_path, "neyman_pearson", *overrides)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("experiment", training_report.EXPERIMENTS)
@pytest.mark.parametrize("method", training_cost.METHODS)
def test_every_key_of_a_training_config_is_an_argument_of_its_target(experiment, method):
    name, *powers = method.split()
    overrides = [f"experiment={experiment}", f"method={name}", *(f"method.nu={p}" for p in powers)]
    with initialize_config_dir(hydra_cli.CONFIGS, version_base="1.3"):
        cfg = compose("train", overrides)
    assert cfg.label == (f"nu={powers[0]}" if powers else name)
    for part in ("task", "method", "images", "schedule"):
        parameters = inspect.signature(get_method(cfg[part]["_target_"])).parameters
        assert set(cfg[part]) - {"_target_"} <= set(parameters)


def test_the_folder_of_a_training_shows_its_power_and_its_seed(trained):
    folders = [path.parent.relative_to(trained).as_posix() for path in trained.rglob("run.json")]
    sizes = "schedule.batch_size=64/schedule.epochs=2/schedule.hidden=16/schedule.n=400"
    assert f"orthonormal/powalm/{sizes}/nu=0.8/seed=0" in folders
    assert f"orthonormal/unconstrained/{sizes}/seed=0" in folders
    weights = "choices.penalty.weight=0.1+300"
    assert f"orthonormal/penalty/{weights}/{sizes}/seed=0" in folders
