"""Structured configs, the template project, and the comparison of a sweep."""

import pytest

pytest.importorskip("hydra")
import csv
import math
import os
import subprocess
import sys
from pathlib import Path

import torch
from hydra import compose, initialize
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import instantiate

from torch_powalm import ConstraintRegistry, PowerALMOptimizer, solvers, zoo
from torch_powalm.integrations import sweep
from torch_powalm.integrations.hydra_configs import configs, register

ROOT = Path(__file__).parents[2]


@pytest.fixture
def composed():
    GlobalHydra.instance().clear()
    register()
    ConfigStore.instance().store(
        name="root",
        node={"defaults": [{"powalm/optimizer": "default"}, {"powalm/solver": "PANOC"}, "_self_"]},
    )
    with initialize(config_path=None, version_base="1.3"):
        yield lambda *overrides: compose("root", overrides=list(overrides))
    GlobalHydra.instance().clear()


def test_the_groups_have_every_solver_and_every_constraint():
    found = configs()
    assert set(found["constraint"]) == set(zoo.__all__) - {"Entry", "HardConcrete", "frozen_copy"}
    assert {"PANOC", "UPFAG", "Spectral"} <= set(found["solver"])
    assert set(found) == {"optimizer", "alm", "solver", "constraint"}


def test_configs_build_what_they_name(composed):
    config = composed(
        "powalm.optimizer.nu=0.7",
        "+powalm/constraint=demographic_parity",
        "powalm.constraint.bound=0.02",
        "+powalm/alm=default",
    )
    constraints = ConstraintRegistry()
    entry = instantiate(config.powalm.constraint)(constraints, "fair")
    assert constraints.blocks["fair"].size == 2
    assert entry.name == "fair"
    base = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    optimizer = instantiate(config.powalm.optimizer)(base, constraints)
    assert isinstance(optimizer, PowerALMOptimizer)
    assert optimizer.dual.nu == 0.7
    assert isinstance(instantiate(config.powalm.solver), solvers.PANOC)
    assert callable(instantiate(config.powalm.alm))


def test_a_misspelled_argument_is_said(composed):
    with pytest.raises(Exception, match=r"Could not override 'powalm.optimizer.mu'"):
        composed("powalm.optimizer.mu=0.7")


def call(*arguments, cwd):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_template_runs_outside_of_the_repository_and_its_sweep_is_compared(tmp_path):
    project = tmp_path / "project"
    call("-m", "torch_powalm.integrations.hydra_configs", project, cwd=tmp_path)
    call(
        *("train.py", "-m", "steps=60", "seed=0,1", "powalm.optimizer.nu=0.8,1"),
        *("hydra.sweep.dir=runs",),
        cwd=project,
    )
    printed = call("-m", "torch_powalm.integrations.sweep", "runs", cwd=project)
    assert "powalm.optimizer.nu=0.8" in printed
    rows = list(csv.DictReader((project / "runs" / "sweep.csv").read_text().splitlines()))
    assert len(rows) == 2
    assert [row["runs"] for row in rows] == ["2", "2"]
    assert (project / "runs" / "sweep.png").read_bytes()[:4] == b"\x89PNG"


def test_runs_are_ordered_by_feasibility_then_merit():
    runs = {
        name: [sweep.Run(name, merit, violation, [])]
        for name, merit, violation in (("a", 1.0, 0.5), ("b", 3.0, 0.0), ("c", 2.0, 0.001))
    }
    assert [row["setting"] for row in sweep.table(runs, 0.01)] == ["c", "b", "a"]


def test_a_result_has_the_violations_of_the_report(tmp_path):
    constraints = ConstraintRegistry()
    constraints.inequality("rate", size=1)
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = PowerALMOptimizer(torch.optim.SGD([weight], lr=0.1), constraints, beta_1=1.0)
    sweep.write_result(str(tmp_path / "run"), optimizer, merit=0.0, settings={"nu": 0.8})
    (run,) = sweep.gather(str(tmp_path))["nu=0.8"]
    assert run.violation == math.inf  # what no batch had is not feasible
    for excess in (0.5, 0.5, 0.5, 0.1):  # the last batch, after an update, is no average yet
        optimizer.zero_grad()
        optimizer.augment(weight.sum(), rate=weight[:1] * 0 + excess).backward()
        optimizer.step()
        if excess == 0.5:
            optimizer.update_multipliers()
    sweep.write_result(tmp_path / "run", optimizer, merit=0.0, settings={"nu": 0.8})
    (run,) = sweep.gather(tmp_path)["nu=0.8"]
    assert run.violation == optimizer.report()["rate"].violation


def test_misuse_is_said(tmp_path):
    with pytest.raises(SystemExit, match=r"no result.json below .*; call write_result"):
        sweep.main([str(tmp_path)])
    with pytest.raises(SystemExit, match=r"--tolerance must be positive, got 0.0"):
        sweep.main([str(tmp_path), "--tolerance", "0"])
