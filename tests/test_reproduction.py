"""The reproduction, tiny: data, features, every experiment config, sweeps, gathering, bad input."""

import csv
import hashlib
import inspect
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import call
from hydra import compose, initialize_config_dir
from hydra.types import RunMode
from hydra.utils import get_method
from omegaconf import OmegaConf
from torchvision import datasets

import torch_powalm
from experiments import claims, clusters, entry, features, gather, records, report, solve, tables
from experiments.data import images
from experiments.records import Run
from experiments.sweep import SweepBar

ROOT = Path(__file__).parent.parent
EXPERIMENTS = sorted(
    path.stem
    for path in (ROOT / "configs" / "experiment").glob("*.yaml")
    if "experiments.solve" in path.read_text()  # test_train.py has the others
)
COLUMNS = (
    "k,primal_residual,dual_residual,objective,beta,sigma,y_norm,inner_iterations,inner_status,"
    "function_calls,gradient_calls,seconds,multiplier"
).split(",")
TINY = {
    "clustering_mnist": ["n=40", "problem.r=4", "problem.s=3"],
    "clustering_fashion": ["n=40", "problem.r=4", "problem.s=3"],
    "qp": ["n=12", "problem.m=3"],
    "gevp": ["n=15"],
}
TRAINING = ["++features.training.hidden=8", "++features.training.max_epochs=1"]


def case_of(experiment):
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        return compose("solve", [f"experiment={experiment}"]).case


def tiny(experiment, output, case=None):
    case = case or case_of(experiment)
    overrides = [f"experiment={experiment}", f"output={output}", "progress=false", *TINY[case]]
    overrides += ["++alm.max_outer=2", "++alm.max_inner=30"]
    if case.startswith("clustering"):
        overrides += [f"features.cache={output}/features", *TRAINING]
    return overrides


def table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def without_seconds(run):
    rows = table(run.folder / "history.csv")
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One tiny run of every experiment config."""
    output = tmp_path_factory.mktemp("runs")
    for experiment in EXPERIMENTS:
        call(solve, *tiny(experiment, output))
    return output


# --- configs


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_config_runs_from_images_to_records(finished, experiment):
    (run,) = records.read(finished / experiment)
    assert run.config["name"] == experiment
    assert run.run.keys() >= {
        "status",
        "seed",
        "seconds",
        "config",
        "commit",
        "versions",
        "machine",
    }
    rows = table(run.folder / "history.csv")
    assert list(rows[0]) == COLUMNS
    assert 1 <= len(rows) == run.result["outer_iterations"] <= 2
    assert int(rows[-1]["gradient_calls"]) <= run.result["gradient_calls"]
    assert str(ROOT) not in json.dumps(run.run)
    assert str(finished) not in json.dumps(run.run)
    if "clusters" in run.run:
        assert run.run["clusters"].keys() >= {"accuracy", "nmi", "ari", "k_means"}
        assert len((run.folder / "clusters.csv").read_text().splitlines()) == 41
        assert run.result["start"]["primal_residual"] < np.sqrt(40)
    if run.config["case"] == "gevp":
        assert run.result["f_star"] <= run.result["objective"] + 1


def nodes(cfg):
    if isinstance(cfg, dict):
        if "_target_" in cfg:
            yield cfg
        for value in cfg.values():
            yield from nodes(value)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_key_of_a_config_is_an_argument_of_its_target(experiment):
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        cfg = OmegaConf.to_container(compose("solve", [f"experiment={experiment}"]), resolve=True)
    found = list(nodes(cfg))
    assert len(found) >= 3
    for node in found:
        parameters = inspect.signature(get_method(node["_target_"])).parameters
        assert set(node) - {"_target_", "_partial_"} <= set(parameters), node["_target_"]


def test_a_config_does_not_repeat_a_default_of_the_library():
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        for experiment in EXPERIMENTS:
            cfg = compose("solve", [f"experiment={experiment}"])
            parameters = inspect.signature(get_method("torch_powalm.power_alm")).parameters
            for key, value in cfg.alm.items():
                if key in parameters and not OmegaConf.is_interpolation(cfg.alm, key):
                    assert value != parameters[key].default, key


@pytest.mark.parametrize("experiment", ["clustering_mnist", "qp_triple"])
def test_the_same_seed_gives_the_same_records_to_the_last_digit(finished, experiment, tmp_path):
    (before,) = records.read(finished / experiment)
    call(solve, *tiny(experiment, tmp_path))  # with features of its own
    (again,) = records.read(tmp_path / experiment)
    assert again.folder.name == before.folder.name
    assert again.result == before.result
    assert without_seconds(again) == without_seconds(before)
    if experiment == "clustering_mnist":
        assert again.run["clusters"] == before.run["clusters"]
        for name in ("clusters.csv", "clusters.png"):
            assert (again.folder / name).read_bytes() == (before.folder / name).read_bytes()


def test_another_seed_gives_another_record(finished, tmp_path):
    call(solve, *tiny("qp_double", tmp_path), "seed=1")
    (other,) = records.read(tmp_path)
    (before,) = records.read(finished / "qp_double")
    assert other.result["objective"] != before.result["objective"]


# --- bad input


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["experiment=clustering_mnist", "dataset=cifar"], "dataset must be one of mnist"),
        (["experiment=clustering_mnist", "n=1001"], r"n must be in \[1, 1000\], got 1001"),
        (["experiment=clustering_mnist", "n=0"], r"n must be in \[1, 1000\], got 0"),
        (["experiment=clustering_mnist", "data.root=nowhere"], "data.root must hold MNIST/raw"),
        (["experiment=clustering_mnist", "data.download=true"], "data.root must be a folder"),
        (["experiment=gevp", "nu=0"], r"nu must be in \(0, 1\], got 0"),
        (["experiment=gevp", "nu=1.5"], r"nu must be in \(0, 1\], got 1.5"),
        (["experiment=gevp", "nu=abc"], "nu must be a number, got 'abc'"),
        (["experiment=gevp", "problem.n=abc"], "n must be a number, got 'abc'"),
        (["experiment=gevp", "nu=null"], "nu must be a number, got None"),
        (["experiment=gevp", "n=0"], "n must be at least 1, got 0"),
        (["experiment=gevp", "threads=0"], "threads must be at least 1, got 0"),
        (["experiment=qp_double", "problem.m=101"], r"m must be in \[1, n = 100\], got 101"),
        (["experiment=nothing"], "Could not find 'experiment/nothing'"),
        (["nuu=1"], "Could not override 'nuu'"),
        (["nu=0.8,1.0"], "Ambiguous value for argument 'nu=0.8,1.0'"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_bad_input_ends_in_one_line_and_exit_code_2(overrides, message, tmp_path, capsys):
    if overrides[0] == "experiment=clustering_mnist":
        # Features that are there already need no images.
        overrides = [*overrides, f"features.cache={tmp_path}/features"]
    with pytest.raises(SystemExit) as end:
        call(solve, *overrides, f"output={tmp_path}", "progress=false")
    assert end.value.code == 2
    printed = capsys.readouterr().err
    assert len(printed.splitlines()) == 1, printed
    assert printed.startswith("error: ")
    with pytest.raises(ValueError, match=message):
        raise ValueError(printed)
    assert records.read(tmp_path) == []


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.root=nowhere", r"data.root must hold MNIST/raw, got 'nowhere'; [^\n]*"),
        ("problem.r=2", r"r must be in \[s = 3, n = 40\], got 2"),
        ("problem.r=41", r"r must be in \[s = 3, n = 40\], got 41"),
        ("problem.s=0", r"s must be in \[1, n = 40\], got 0"),
        ("problem.scale=0", "scale must be positive and finite, got 0"),
        ("++features.training.hidden=0", "hidden must be at least 1, got 0"),
        ("++features.training.lr=0", "lr must be positive, got 0"),
    ],
)
def test_bad_settings_of_a_clustering_are_named(finished, override, message, capsys):
    made = len(records.read(finished))
    with pytest.raises(SystemExit) as end:
        call(solve, *tiny("clustering_mnist", finished), override)
    assert end.value.code == 2
    with pytest.raises(ValueError, match=f"^error: {message}\n$"):
        raise ValueError(capsys.readouterr().err)
    assert len(records.read(finished)) == made


def test_a_failed_job_does_not_stop_its_sweep(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        call(solve, "-m", *tiny("qp_double", tmp_path), "nu=0,0.8", "seed=0")
    assert end.value.code == 2
    assert "error: nu must be in (0, 1], got 0" in capsys.readouterr().err.splitlines()
    assert [run.config["nu"] for run in records.read(tmp_path)] == [0.8]


def test_a_run_that_is_interrupted_is_not_kept(tmp_path, monkeypatch, capsys):
    def interrupted(*args, **settings):
        return torch_powalm.alm.power_alm(*args, **settings, callback=lambda record, x: True)

    monkeypatch.setattr(torch_powalm, "power_alm", interrupted)
    with pytest.raises(SystemExit) as end:
        call(solve, *tiny("qp_double", tmp_path))
    assert end.value.code == 130
    assert capsys.readouterr().err == "interrupted: what was not finished is not kept\n"
    assert records.read(tmp_path) == []


def test_other_errors_keep_their_traceback(monkeypatch):
    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        entry.run(broken)


def test_gathering_leaves_trainings_out(tmp_path, monkeypatch, capsys):
    training = next((ROOT / "experiments" / "results" / "training").rglob("run.json")).parent
    shutil.copytree(training, tmp_path / "training")
    monkeypatch.setattr(sys, "argv", ["gather", str(tmp_path)])
    with pytest.raises(SystemExit):
        gather.main()
    assert capsys.readouterr().err == f"error: {tmp_path} holds no finished run\n"


def test_gathering_nothing_is_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gather", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        gather.main()
    assert end.value.code == 2
    assert capsys.readouterr().err == f"error: {tmp_path} holds no finished run\n"


# --- data and features


@pytest.mark.parametrize("dataset", images.NAMES)
def test_the_sample_holds_real_images_of_all_classes(dataset):
    data = images.Source(dataset).load()
    assert data.train.shape == (5000, 28, 28)
    assert data.test.shape == (1000, 28, 28)
    assert data.train.dtype == torch.uint8
    assert torch.bincount(data.train_labels).min() > 400
    assert torch.bincount(data.test_labels).min() > 60
    assert 30 < data.train.float().mean() < 90  # of 255: neither empty nor noise


@pytest.mark.parametrize("dataset", images.NAMES)
def test_a_corrupt_sample_is_refused(dataset, tmp_path, monkeypatch):
    content = bytearray((images.FOLDER / f"{dataset}.npz").read_bytes())
    content[1000] ^= 1
    (tmp_path / f"{dataset}.npz").write_bytes(content)
    monkeypatch.setattr(images, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=rf"{dataset}.npz is corrupt: its checksum differs"):
        images.Source(dataset).load()
    (tmp_path / f"{dataset}.npz").unlink()
    with pytest.raises(
        FileNotFoundError, match=f"{dataset}.npz is missing; it belongs to the repo"
    ):
        images.Source(dataset).load()


def write_copy(root, monkeypatch):
    """A small data set in torchvision's layout, from the sample, with its checksums noted."""
    data = images.Source("mnist").load()
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part, pixels, labels in (
        ("train", data.train[:30], data.train_labels[:30]),
        ("t10k", data.test[:20], data.test_labels[:20]),
    ):
        header = np.array([2051, len(pixels), 28, 28], dtype=">i4").tobytes()
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + pixels.numpy().tobytes())
        header = np.array([2049, len(pixels)], dtype=">i4").tobytes()
        content = header + labels.byte().numpy().tobytes()
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(content)
    for path in folder.iterdir():
        monkeypatch.setitem(
            images.SUMS, f"MNIST/{path.name}", hashlib.sha256(path.read_bytes()).hexdigest()
        )
    return folder


def test_a_local_copy_is_read_and_verified(tmp_path, monkeypatch):
    folder = write_copy(tmp_path, monkeypatch)
    source = images.Source("mnist", str(tmp_path))
    sample, copy = images.Source("mnist").load(), source.load()
    assert torch.equal(copy.train, sample.train[:30])
    assert torch.equal(copy.test_labels, sample.test_labels[:20])
    assert (source.part, images.Source("mnist").part) == ("complete", "sample")
    path = folder / "t10k-labels-idx1-ubyte"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="t10k-labels-idx1-ubyte is corrupt: its checksum differs"):
        source.load()
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"data.root lacks .*t10k-labels-idx1-ubyte; data"):
        source.load()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.root={copy}", r"error: .*train-images-idx3-ubyte is corrupt: its checksum differs"),
        ("dataset=cifar", "error: dataset must be one of mnist, fashion_mnist, got 'cifar'"),
        ("n=5000", r"error: n must be in \[1, 1000\], got 5000"),
    ],
    ids=["corrupt", "dataset", "n"],
)
def test_the_features_script_refuses_bad_input(override, message, tmp_path, monkeypatch, capsys):
    path = write_copy(tmp_path, monkeypatch) / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    cache = tmp_path / "features"
    with pytest.raises(SystemExit) as end:
        call(
            features,
            override.format(copy=tmp_path),
            f"features.cache={cache}",
            f"output={tmp_path}",
        )
    assert end.value.code == 2
    with pytest.raises(ValueError, match=f"^{message}[^\n]*\n$"):
        raise ValueError(capsys.readouterr().err)
    assert not cache.exists()


def test_a_download_without_internet_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.MNIST, "mirrors", ["http://127.0.0.1:9/"])
    with pytest.raises(
        ConnectionError, match=r"cannot be downloaded .* give data.root of a local copy"
    ):
        images.Source("mnist", str(tmp_path), download=True).load()


def test_features_are_outputs_labels_and_places_of_test_images(finished, capsys):
    (path,) = (finished / "features").glob("mnist-*/features.npz")
    found = features._read(path)
    data = images.Source("mnist").load()
    assert found.outputs.shape == (40, 10)
    assert len(set(found.index.tolist())) == 40
    assert torch.equal(torch.from_numpy(found.images), data.test[found.index])
    assert found.labels.tolist() == data.test_labels[found.index].tolist()
    assert not np.allclose(found.outputs.sum(1), 1)  # before the softmax
    state = torch.load(path.parent / "network.ckpt", weights_only=True)["state_dict"]
    hidden = (
        data.test.flatten(1) / 255 @ state["layers.0.weight"].T + state["layers.0.bias"]
    ).relu()
    outputs = hidden @ state["layers.2.weight"].T + state["layers.2.bias"]
    torch.testing.assert_close(torch.from_numpy(found.outputs), outputs[found.index])
    accuracy = (outputs.argmax(1) == data.test_labels).double().mean().item()
    assert found.accuracy == pytest.approx(accuracy)
    assert accuracy > 0.5  # after one epoch with 8 hidden units
    call(features, "n=40", *TRAINING, f"features.cache={finished}/features", f"output={finished}")
    assert (
        f"test accuracy {accuracy:.4f}, features of 40 images in {path}" in capsys.readouterr().out
    )


def test_corrupt_features_are_refused(tmp_path):
    path = tmp_path / "features.npz"
    path.write_bytes(b"PK half a file")
    with pytest.raises(ValueError, match=r"features.npz is corrupt; delete it to train again"):
        features._read(path)


# --- clusters


def test_clusters_of_an_ideal_solution_are_its_classes():
    labels = np.repeat(np.arange(3), 10)
    X = np.zeros((30, 5))
    X[labels == 0, 3] = X[labels == 1, 0] = 1 / np.sqrt(10)
    X[labels == 2, 1] = X[labels == 2, 4] = 1 / np.sqrt(20)  # a cluster on two columns
    found = clusters.match(clusters.cluster(X, 3), labels)
    assert found.tolist() == labels.tolist()
    assert clusters.scores(found, labels) == pytest.approx({"accuracy": 1, "nmi": 1, "ari": 1})


def test_accuracy_counts_points_outside_the_class_of_their_cluster():
    labels = np.array([0, 0, 0, 1, 1, 1])
    assert clusters.scores(np.array([1, 1, 0, 0, 0, 0]), labels)["accuracy"] == pytest.approx(5 / 6)


def test_the_picture_marks_images_of_another_class():
    pixels = np.full((3, 28, 28), 255, dtype=np.uint8)
    picture = clusters.mosaic(np.array([0, 0, 1]), np.array([0, 1, 1]), pixels)
    assert picture.shape == (56, 28 * clusters.SHOWN, 3)
    assert picture[10, 10].tolist() == [0, 0, 0]
    assert picture[10, 38].tolist() == [220, 0, 0]
    assert picture[10, 66].tolist() == [255, 255, 255]


# --- sweeps


def test_a_finished_run_is_skipped_and_a_half_written_one_redone(tmp_path, capsys):
    overrides = ["-m", *tiny("qp_double", tmp_path), "nu=0.8,1.0", "seed=0,1"]
    call(solve, *overrides)
    assert "sweep [####################] 4 of 4 jobs" in capsys.readouterr().err
    runs = records.read(tmp_path)
    times = [(run.folder / "run.json").stat().st_mtime_ns for run in runs]
    (runs[0].folder / "run.json").unlink()
    content = (runs[1].folder / "run.json").read_text()
    (runs[1].folder / "run.json").write_text(content[: len(content) // 2])
    call(solve, *overrides)
    assert capsys.readouterr().out.count("finished before") == 2
    again = records.read(tmp_path)
    assert [run.run["config"] for run in again] == [run.run["config"] for run in runs]
    assert [run.result for run in again] == [run.result for run in runs]
    new = [(run.folder / "run.json").stat().st_mtime_ns for run in again]
    assert [a == b for a, b in zip(times, new, strict=True)] == [False, False, True, True]
    assert not list(tmp_path.rglob(".*run.json"))


def test_a_killed_sweep_goes_on_where_it_stopped(tmp_path):
    overrides = ["-m", *tiny("qp_double", tmp_path), "nu=0.3,0.4,0.5,0.6,0.7,0.8,0.9,1.0", "seed=0"]
    command = [sys.executable, "-m", "experiments.solve", *overrides]
    sweep = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.rglob("run.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    sweep.kill()
    sweep.wait()
    before = {
        run.folder: (run.folder / "run.json").stat().st_mtime_ns for run in records.read(tmp_path)
    }
    assert 1 <= len(before) < 8
    call(solve, *overrides)
    after = records.read(tmp_path)
    assert [run.config["nu"] for run in after] == [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    for folder, written in before.items():
        assert (folder / "run.json").stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("launcher", "nus"),
    [("joblib", [0.8, 1.0]), ("submitit_local", [0.8])],
    ids=["joblib", "submitit"],
)
def test_a_sweep_runs_in_other_processes(launcher, nus, finished, tmp_path, capfd):
    overrides = [f"hydra/launcher={launcher}", f"nu={','.join(map(str, nus))}", "seed=0"]
    call(solve, "-m", *tiny("qp_double", tmp_path), *overrides)
    runs = records.read(tmp_path)
    assert [run.config["nu"] for run in runs] == nus
    (here,) = records.read(finished / "qp_double")  # solved in this process
    assert runs[0].result == here.result
    assert f"{len(nus)} of {len(nus)} jobs" in capfd.readouterr().err


# --- gathering


def test_gathering_writes_tables_and_figures_of_every_experiment(
    finished, tmp_path, monkeypatch, capsys
):
    arguments = [str(finished), "--output", str(tmp_path), "--report", str(tmp_path / "R.md")]
    monkeypatch.setattr(sys, "argv", ["gather", *arguments])
    monkeypatch.setattr(solve, "main", None)  # nothing is solved
    gather.main()
    for name in (
        "clustering_mnist",
        "clustering_fashion",
        "qp_double",
        "qp_triple",
        "gevp",
        "demo",
    ):
        for ending in ("png", "svg"):
            assert (tmp_path / "figures" / f"{name}.{ending}").stat().st_size > 10_000
    for name in ("demo_clusters", "qp_double", "qp_triple", "gevp", "gevp_powers", "beyond"):
        rows = table(tmp_path / "tables" / f"{name}.csv")
        lines = (tmp_path / "tables" / f"{name}.md").read_text().splitlines()
        assert len(rows) == len(lines) - 2 >= 1
        assert len(lines[0].split(" | ")) == len(rows[0])
    printed = capsys.readouterr().out
    assert f"tables in {tmp_path}/tables, figures in {tmp_path}/figures" in printed
    text = (tmp_path / "R.md").read_text()
    assert "Not run." not in text
    assert "![gevp](figures/gevp.png)" in text


def test_only_the_first_instances_keep_their_histories(finished, tmp_path):
    (run,) = records.read(finished / "qp_double")
    late = Run(run.folder, run.run | {"seed": records.KEPT})
    records.keep([run], run.folder.parent, tmp_path / "early")
    records.keep([late], run.folder.parent, tmp_path / "late")
    assert [p.name for p in sorted((tmp_path / "early").rglob("*.*"))[1:]] == [
        "history.csv",
        "run.json",
    ]
    assert [p.name for p in (tmp_path / "late").rglob("*.json")] == ["run.json"]
    assert not list((tmp_path / "late").rglob("history.csv"))
    (copied,) = records.read(tmp_path / "late")
    assert copied.history == {}


def made(name, nu, count, *, seed=0, primal=1e-4, status="converged", method="UPFAG"):
    config = {"name": name, "nu": nu, "case": "qp", "rule": "paper", "method": method}
    result = {"inner_iterations": count, "gradient_calls": 3 * count, "primal_residual": primal}
    result |= {"dual_residual": 1e-5, "objective": -1.0, "f_star": -1.001}
    return Run(
        Path(), {"config": config, "result": result, "seed": seed, "status": status, "seconds": 1.0}
    )


def verdicts(runs):
    return [answer.verdict for answer in claims.answers(runs)]


def test_claims_are_answered_from_the_runs():
    good, bad = [], []
    for experiment in ("clustering_mnist", "clustering_fashion"):
        for nu, few, many in ((0.7, 10, 10), (0.8, 20, 30), (1.0, 50, 50)):
            good.append(made(experiment, nu, few))
            bad.append(made(experiment, nu, many))
    for seed in range(10):
        for nu in (0.4, 1.0):
            apgm = {"seed": seed, "method": "AcceleratedGradient"}
            good.append(made("gevp", nu, 10 if nu < 1 else 200, **apgm))
            bad.append(made("gevp", nu, 10 if nu < 1 else 90, **apgm))
        for nu in (0.6, 0.7, 0.8, 0.9, 1.0):
            double, triple = {"seed": seed}, {"seed": seed, "method": "ProximalPoint"}
            cost = 70 if nu == 0.8 else 100
            good.append(made("qp_double", nu, cost * (1 + seed % 2), primal=nu, **double))
            good.append(made("qp_triple", nu, 1000 + seed, primal=nu, **triple))
            bad.append(made("qp_double", nu, 100 + seed, primal=1 / nu, **double))
            bad.append(made("qp_triple", nu, 10 * (1 + seed % 2), primal=1 - nu, **triple))
    assert verdicts(good) == ["yes"] * 8
    assert verdicts(bad) == ["no"] * 8
    nine = [run for run in good if run.run["seed"] < 9 or run.config["name"] != "qp_triple"]
    assert verdicts(nine) == ["yes"] * 8
    said = "qp_triple over 9 of 10 instances"
    partial = [said in answer.evidence for answer in claims.answers(nine)]
    assert partial == [False] * 4 + [True, False, True, True]
    four = [run for run in good if run.run["seed"] < 4]
    assert verdicts(four) == ["yes"] * 2 + ["not run"] * 6
    holes = [run for run in good if run.config["nu"] != 0.7 or run.config["name"] != "qp_triple"]
    assert verdicts(holes) == ["yes"] * 4 + ["not run", "yes", "not run", "not run"]
    assert verdicts([]) == ["not run"] * 8


def test_a_power_that_fails_answers_no_and_shows_as_failing():
    runs = [made("clustering_mnist", nu, 10, status="max_outer") for nu in (0.7, 0.8)]
    runs.append(made("clustering_mnist", 1.0, 100))
    answer = claims.half(runs, "clustering_mnist", "MNIST")
    assert answer.verdict == "no"
    assert "ν = 0.7: not all converged" in answer.evidence
    failed = [made("qp_double", 0.8, 10, seed=seed, status="stalled") for seed in range(2)]
    (row,) = tables.trials(failed, "qp_double")
    assert (row["ours"], row["ratio"], row["converged"]) == ("–", "–", "0 of 2")


def test_a_table_sets_the_mean_beside_the_papers():
    runs = [made("qp_double", 0.8, count, seed=seed) for seed, count in enumerate((100, 300, 200))]
    (row,) = tables.trials(runs, "qp_double")
    assert row["ours"] == "200"
    assert row["paper"] == "61,940"  # the paper's Table 1
    assert row["median (range)"] == "200 (100–300)"
    assert row["ratio"] == "0.0032"


def test_the_report_is_what_the_committed_records_say():
    written = ROOT / "experiments" / "REPRODUCTION.md"
    runs = records.read(ROOT / "experiments" / "results" / "runs")
    assert written.read_text() == report.text(runs, Path("results/figures"))


def test_two_sweeps_into_one_folder_count_their_own_jobs(tmp_path, capsys):
    hydra = {"sweep": {"dir": str(tmp_path)}, "sweeper": {"params": {"nu": "0.5,1.0"}}}
    config = OmegaConf.create({"hydra": hydra | {"overrides": {"task": []}}})
    config.hydra.mode = RunMode.MULTIRUN
    one, other = SweepBar(), SweepBar()
    other.starter = -1  # another process
    for bar in (one, other):
        bar.on_multirun_start(config)
    one.on_job_end(config, None)
    one.on_multirun_end(config)
    other.on_job_end(config, None)
    other.on_multirun_end(config)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("] ")[1] for line in lines] == ["0 of 2 jobs"] * 2 + ["1 of 2 jobs"] * 2
    assert not list(tmp_path.iterdir())
