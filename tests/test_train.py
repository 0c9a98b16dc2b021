"""The constrained trainings, tiny, on the carried images: tasks, methods, records, report, cost."""

import csv
import json
import sys
from pathlib import Path

import pytest
import torch
from command_line import call
from hydra import compose, initialize_config_dir

from experiments import entry, methods, records, train, train_report, training
from experiments.benchmarks import training_cost
from experiments.problems.neyman_pearson import NeymanPearson
from experiments.problems.orthonormal import Orthonormal

ROOT = Path(__file__).parent.parent
TINY = ["++schedule.n=400", "schedule.epochs=2", "++schedule.hidden=16", "schedule.batch_size=64"]


def run(output, experiment, *overrides):
    call(train, f"experiment={experiment}", f"output={output}", *TINY, *overrides)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Both experiments with ours, no constraint, and a grid of two penalties."""
    output = tmp_path_factory.mktemp("trainings")
    for experiment in train_report.EXPERIMENTS:
        run(output, experiment, "method=nu_08")
        run(output, experiment, "method=unconstrained")
        run(output, experiment, "method=penalty", "choices.penalty.weight=[0.1,300.0]")
    return output


@pytest.mark.parametrize("experiment", train_report.EXPERIMENTS)
def test_an_experiment_runs_from_images_to_records(finished, experiment):
    runs = records.read(finished / experiment)
    assert [r.config["label"] for r in runs] == ["nu=0.8", "penalty", "unconstrained"]
    for r in runs:
        assert r.history["epoch"] == [1, 2]
        for part in ("train", "val", "test"):
            assert r.result[f"{part}_loss"] == r.history[f"{part}_loss"][-1]
            assert 0 < r.result[f"{part}_loss"] < 5
            assert r.result[f"{part}_violation"] >= 0
        assert str(ROOT) not in json.dumps(r.run)
        assert str(finished) not in json.dumps(r.run)
    ours, _, unconstrained = runs
    assert ours.result["train_loss"] != unconstrained.result["train_loss"]
    if experiment == "orthonormal":
        assert ours.result["train_violation"] < unconstrained.result["train_violation"]


@pytest.mark.parametrize("experiment", train_report.EXPERIMENTS)
def test_the_best_candidate_on_validation_data_is_reported(finished, experiment):
    for made in records.read(finished / experiment)[:2]:  # ours and the penalty
        (chosen,) = [c for c in made.run["candidates"] if c["chosen"]]
        assert made.result["test_loss"] == chosen["test_loss"]
        others = [c for c in made.run["candidates"] if not c["chosen"]]
        assert others
        tolerance = made.config["task"]["tolerance"]
        for other in others:
            assert _score(chosen, tolerance) <= _score(other, tolerance)


def _score(row, tolerance):
    """Feasible before infeasible, then the loss or the violation, on validation data."""
    feasible = row["val_violation"] <= tolerance
    return (not feasible, row["val_loss"] if feasible else row["val_violation"])


def test_a_grid_has_a_candidate_for_every_combination():
    grid = methods.Grid(methods.Cooper, {"augmented": [False, True], "dual_lr": [0.1, 1.0]})
    assert list(grid.candidates()) == [
        "augmented False, dual_lr 0.1",
        "augmented False, dual_lr 1.0",
        "augmented True, dual_lr 0.1",
        "augmented True, dual_lr 1.0",
    ]
    assert grid.candidates()["augmented True, dual_lr 0.1"] == methods.Cooper(True, 0.1)


def test_a_margin_makes_training_stricter_than_the_task():
    task = NeymanPearson((6,), 0.05, 0.0)
    labels, outputs = torch.tensor([6, 6, 0]), torch.zeros(3, 10)
    excess = task.tightened(0.02).strict(None, outputs, labels)
    torch.testing.assert_close(excess, task.strict(None, outputs, labels) + 0.02)
    assert Orthonormal(0.01).tightened(0.0) == Orthonormal(0.01)
    with pytest.raises(ValueError, match=r"margin must be 0 for equalities, got 0\.1"):
        Orthonormal(0.01).tightened(0.1)


def test_a_finished_training_is_not_made_again_and_a_seed_fixes_it(finished, tmp_path, capsys):
    run(finished, "orthonormal", "method=nu_08")
    assert "finished before" in capsys.readouterr().out
    run(tmp_path, "orthonormal", "method=nu_08")
    (again,) = records.read(tmp_path)
    assert again.result == records.read(finished / "orthonormal")[0].result


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


def test_the_report_has_a_row_for_each_method_and_a_figure(finished, monkeypatch, capsys):
    report = finished / "TRAINING.md"
    argv = ["report", str(finished), "--output", str(finished / "out"), "--report", str(report)]
    monkeypatch.setattr(sys, "argv", argv)
    train_report.main()
    for experiment in train_report.EXPERIMENTS:
        rows = (finished / "out/tables" / f"training_{experiment}.csv").read_text().splitlines()
        assert [line.split(",")[0] for line in rows[1:]] == ["unconstrained", "penalty", "ν = 0.8"]
    assert "](out/figures/training.png)" in report.read_text()
    assert (finished / "out/figures/training.png").stat().st_size > 10_000


def test_the_committed_report_is_that_of_the_committed_records():
    folder = ROOT / "experiments" / "results" / "training"
    text = train_report.text(
        records.read(folder), train_report.read_costs(folder / "cost.csv"), Path("results/figures")
    )
    assert (ROOT / "experiments" / "TRAINING.md").read_text() == text


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
    run(tmp_path, "orthonormal", "method=cooper")
    assert "cooper-optim is missing" in capsys.readouterr().out
    assert not records.read(tmp_path)


def test_cooper_trains_where_it_is_installed(tmp_path):
    pytest.importorskip("cooper")
    for experiment in train_report.EXPERIMENTS:
        run(tmp_path, experiment, "method=cooper")
    made = records.read(tmp_path)
    assert [r.history["epoch"] for r in made] == [[1, 2]] * 2
    for r in made:  # the first penalty must suit the kind of the constraint
        mild = [c for c in r.run["candidates"] if "dual_lr 1.0" not in c["settings"]]
        assert all(c["train_loss"] < 10 for c in mild)


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
        run(tmp_path, "neyman_pearson", *overrides)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_every_method_of_the_sweep_composes():
    with initialize_config_dir(entry.CONFIGS, version_base="1.3"):
        for name in training_cost.METHODS:
            cfg = compose("train", ["experiment=orthonormal", f"method={name}"])
            assert cfg.label in {"unconstrained", "penalty", "cooper"} or cfg.method.method.nu > 0
