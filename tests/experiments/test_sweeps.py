"""Sweeps: folders of runs, resuming, launchers, the progress bar."""

import subprocess
import sys
import time

import pytest
from hydra.types import RunMode
from omegaconf import OmegaConf

from experiments import run_folder, solve
from experiments.atomic_files import replacing, write_text
from experiments.sweep_progress import SweepBar
from tests.experiments.tiny_runs import ROOT, call, tiny


def files(output):
    return sorted(output.rglob("run.json"))


def written(path):
    return path.stat().st_mtime_ns


def test_a_finished_run_is_skipped_and_a_half_written_one_redone(tmp_path, capsys):
    overrides = ["-m", *tiny("qp_double", tmp_path), "nu=0.8,1.0", "seed=0,1"]
    call(solve, *overrides)
    assert "sweep [####################] 4 of 4 jobs" in capsys.readouterr().err
    runs = run_folder.read(tmp_path)
    times = list(map(written, files(tmp_path)))
    files(tmp_path)[0].unlink()
    second = files(tmp_path)[0]
    second.write_text(second.read_text()[:500])
    call(solve, *overrides)
    assert capsys.readouterr().out.count("finished before") == 2
    again = run_folder.read(tmp_path)
    assert [run.run["config"] for run in again] == [run.run["config"] for run in runs]
    assert [run.result for run in again] == [run.result for run in runs]
    new = list(map(written, files(tmp_path)))
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
    before = {path: written(path) for path in files(tmp_path)}
    assert 1 <= len(before) < 8
    call(solve, *overrides)
    after = run_folder.read(tmp_path)
    assert [run.config["nu"] for run in after] == [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    assert before.items() <= {path: written(path) for path in files(tmp_path)}.items()


def test_what_a_kill_has_left_is_removed_and_what_a_writer_holds_stays(tmp_path):
    (tmp_path / ".run.json-x.part").mkdir()
    (tmp_path / ".run.json-x.part" / "part.json").write_text("half")
    with replacing(tmp_path / "one.csv") as part:
        part.write_text("first")
        write_text(tmp_path / "run.json", "second")  # another writer in the same folder
        assert part.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.csv", "run.json"]
    (tmp_path / ".run.json-y.part").mkdir()  # of a run that ended before the kill
    assert not run_folder.finished(tmp_path / "none", {})
    (tmp_path / "run.json").write_text('{"config": {}}')
    assert run_folder.finished(tmp_path, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.csv", "run.json"]


@pytest.mark.parametrize(
    ("launcher", "nus"),
    [("joblib", [0.8, 1.0]), ("submitit_local", [0.8])],
    ids=["joblib", "submitit"],
)
def test_a_sweep_runs_in_other_processes(launcher, nus, finished, tmp_path, capfd):
    overrides = [f"hydra/launcher={launcher}", f"nu={','.join(map(str, nus))}", "seed=0"]
    call(solve, "-m", *tiny("qp_double", tmp_path), *overrides)
    runs = run_folder.read(tmp_path)
    assert [run.config["nu"] for run in runs] == nus
    (here,) = run_folder.read(finished / "qp_double")  # solved in this process
    assert runs[0].result == here.result
    assert f"{len(nus)} of {len(nus)} jobs" in capfd.readouterr().err


def test_two_sweeps_into_one_folder_count_their_own_jobs(tmp_path, capsys):
    hydra = {"sweep": {"dir": str(tmp_path)}, "sweeper": {"params": {"nu": "0.5,1.0"}}}
    config = OmegaConf.create({"hydra": hydra | {"overrides": {"task": []}}})
    config.hydra.mode = RunMode.MULTIRUN
    one, other = SweepBar(), SweepBar()
    other.starter = -1  # another process
    (tmp_path / ".jobs-5").write_bytes(b"..")  # of a killed sweep
    for bar in (one, other):
        bar.on_multirun_start(config)
    one.on_job_end(config, None)
    one.on_multirun_end(config)
    other.on_job_end(config, None)
    other.on_multirun_end(config)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("] ")[1] for line in lines] == ["0 of 2 jobs"] * 2 + ["1 of 2 jobs"] * 2
    assert not list(tmp_path.iterdir())


# --- folders


def qp(output, *overrides):
    call(solve, "experiment=qp_double", f"output={output}", "progress=false", *overrides)


SMALL = ("n=12", "problem.m=3", "++alm.max_outer=1", "++alm.max_inner=5")
LEVELS = "max_inner=5/max_outer=1/n=12/problem.m=3"


@pytest.mark.parametrize(
    ("overrides", "folder"),
    [
        ((), f"qp_double/upfag_paper/{LEVELS}/nu=0.8/seed=0"),
        (("nu=1", "seed=3"), f"qp_double/upfag_paper/{LEVELS}/nu=1/seed=3"),
        (
            ("nu=1.0", "alm.omega=1.1"),
            f"qp_double/upfag_paper/{LEVELS}/nu=1/seed=0",
        ),  # as in the config
        (("alm.beta_1=2",), f"qp_double/upfag_paper/beta_1=2/{LEVELS}/nu=0.8/seed=0"),
        (("solver=panoc",), f"qp_double/panoc/{LEVELS}/nu=0.8/seed=0"),
        (("alm=ours",), f"qp_double/upfag_paper/alm=ours/{LEVELS}/nu=0.8/seed=0"),
        (("name=other",), f"other/qp/upfag_paper/{LEVELS}/nu=0.8/seed=0"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, tuple) else "",
)
def test_a_run_folder_is_named_after_what_differs_from_the_experiment(overrides, folder, tmp_path):
    qp(tmp_path, *SMALL, *overrides)
    (path,) = files(tmp_path)
    assert path.parent.relative_to(tmp_path).as_posix() == folder
    (run,) = run_folder.read(tmp_path)
    assert f"{run.config['name']}/{run.key}" == folder
    assert "," not in folder


def test_problems_of_one_experiment_have_folders_of_their_own(tmp_path):
    overrides = ["problem=qp,gevp", "solver=panoc", "nu=0.8", "seed=0", "n=12"]
    overrides += ["+alm.max_outer=1", f"output={tmp_path}", "progress=false"]
    with pytest.raises(SystemExit):  # 20 constraints of 12 variables
        call(solve, "-m", "experiment=beyond", *overrides)
    call(solve, "-m", "experiment=beyond", *overrides, "problem=gevp")
    (path,) = files(tmp_path)
    name = "beyond/gevp/panoc/max_outer=1/n=12/nu=0.8/seed=0"
    assert path.parent.relative_to(tmp_path).as_posix() == name


def test_equal_settings_are_one_run_however_they_are_given(tmp_path, capsys):
    qp(tmp_path, *SMALL, "nu=1")
    qp(tmp_path, *SMALL, "nu=1.0", "alm.lam=0.001", "progress=true")
    assert "finished before" in capsys.readouterr().out
    assert len(files(tmp_path)) == 1


def test_a_run_with_other_settings_is_never_overwritten(tmp_path, capsys):
    qp(tmp_path, *SMALL)
    (path,) = files(tmp_path)
    path.write_text(path.read_text().replace('"omega": 1.1', '"omega": 1.2'))
    before = path.read_bytes()
    with pytest.raises(SystemExit) as end:
        qp(tmp_path, *SMALL)
    assert end.value.code == 2
    message = "holds a run with other settings (alm.omega: 1.2 -> 1.1); choose another output"
    assert message in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_name_that_leads_elsewhere_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        qp(tmp_path / "a" / "b", *SMALL, "name=../../x")
    assert "name must be a plain folder name" in capsys.readouterr().err
    assert files(tmp_path) == []
