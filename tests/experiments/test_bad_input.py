"""Bad input of the scripts ends in one line and exit code 2, and an interrupt leaves no record."""

import pytest

import torch_powalm
from experiments import hydra_cli, run_folder, solve
from tests.experiments.tiny_runs import call, tiny


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
    assert run_folder.read(tmp_path) == []


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
    made = len(run_folder.read(finished))
    with pytest.raises(SystemExit) as end:
        call(solve, *tiny("clustering_mnist", finished), override)
    assert end.value.code == 2
    with pytest.raises(ValueError, match=f"^error: {message}\n$"):
        raise ValueError(capsys.readouterr().err)
    assert len(run_folder.read(finished)) == made


def test_a_failed_job_does_not_stop_its_sweep(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        call(solve, "-m", *tiny("qp_double", tmp_path), "nu=0,0.8", "seed=0")
    assert end.value.code == 2
    assert "error: nu must be in (0, 1], got 0" in capsys.readouterr().err.splitlines()
    assert [run.config["nu"] for run in run_folder.read(tmp_path)] == [0.8]


def test_a_run_that_is_interrupted_is_not_kept(tmp_path, monkeypatch, capsys):
    def interrupted(*args, **settings):
        return torch_powalm.solving.power_alm.power_alm(
            *args, **{**settings, "callback": lambda record, x: True}
        )

    monkeypatch.setattr(torch_powalm, "power_alm", interrupted)
    with pytest.raises(SystemExit) as end:
        call(solve, *tiny("qp_double", tmp_path))
    assert end.value.code == 130
    assert capsys.readouterr().err == "interrupted: unfinished runs are not kept\n"
    assert run_folder.read(tmp_path) == []


def test_other_errors_keep_their_traceback(monkeypatch):
    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        hydra_cli.run(broken)
