"""Every experiment config of `solve` composes, runs, and gives the same records again."""

import inspect
import json

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import get_method
from omegaconf import OmegaConf

from experiments import hydra_cli, run_folder, solve
from experiments.problems import deterministic
from tests.experiments.tiny_runs import EXPERIMENTS, ROOT, call, tiny

COLUMNS = (
    "k,primal_residual,dual_residual,objective,beta,sigma,y_norm,inner_iterations,inner_status,"
    "function_calls,gradient_calls,seconds,multiplier"
).split(",")


def without_seconds(run):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in run.tables["history"]]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_config_runs_from_images_to_records(finished, experiment):
    (run,) = run_folder.read(finished / experiment)
    assert run.config["name"] == experiment
    assert (finished / experiment / run.key / "run.json").exists()
    assert run.run.keys() >= {
        "status",
        "seed",
        "seconds",
        "config",
        "commit",
        "versions",
        "machine",
    }
    rows = run.tables["history"]
    assert list(rows[0]) == COLUMNS
    assert 1 <= len(rows) == run.result["outer_iterations"] <= 2
    assert int(rows[-1]["gradient_calls"]) <= run.result["gradient_calls"]
    assert str(ROOT) not in json.dumps(run.run)
    assert str(finished) not in json.dumps(run.run)
    if "clusters" in run.run:
        assert run.run["clusters"].keys() >= {"accuracy", "nmi", "ari", "k_means"}
        assert len(run.tables["clusters"]) == 40
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
    with initialize_config_dir(hydra_cli.CONFIGS, version_base="1.3"):
        cfg = OmegaConf.to_container(compose("solve", [f"experiment={experiment}"]), resolve=True)
    found = list(nodes(cfg))
    assert len(found) >= 3
    for node in found:
        parameters = dict(inspect.signature(get_method(node["_target_"])).parameters)
        if parameters.pop("generator", None):  # passed on to the generator of the problem
            parameters |= inspect.signature(deterministic.qp_parts).parameters
        assert set(node) - {"_target_", "_partial_"} <= set(parameters), node["_target_"]


def test_a_config_does_not_repeat_a_default_of_the_library():
    with initialize_config_dir(hydra_cli.CONFIGS, version_base="1.3"):
        for experiment in EXPERIMENTS:
            cfg = compose("solve", [f"experiment={experiment}"])
            parameters = inspect.signature(get_method("torch_powalm.power_alm")).parameters
            for key, value in cfg.alm.items():
                if key in parameters and not OmegaConf.is_interpolation(cfg.alm, key):
                    assert value != parameters[key].default, key


@pytest.mark.parametrize("experiment", ["clustering_mnist", "qp_triple"])
def test_the_same_seed_gives_the_same_records_to_the_last_digit(finished, experiment, tmp_path):
    (before,) = run_folder.read(finished / experiment)
    call(solve, *tiny(experiment, tmp_path))  # with features of its own
    (again,) = run_folder.read(tmp_path / experiment)
    assert again.key == before.key
    assert again.result == before.result
    assert without_seconds(again) == without_seconds(before)
    if experiment == "clustering_mnist":
        assert again.run["clusters"] == before.run["clusters"]
        assert again.tables["clusters"] == before.tables["clusters"]
        folders = finished / experiment, tmp_path / experiment
        (one,), (other,) = (list(folder.rglob("clusters.png")) for folder in folders)
        assert one.read_bytes() == other.read_bytes()


def test_another_seed_gives_another_record(finished, tmp_path):
    call(solve, *tiny("qp_double", tmp_path), "seed=1")
    (other,) = run_folder.read(tmp_path)
    (before,) = run_folder.read(finished / "qp_double")
    assert other.result["objective"] != before.result["objective"]
