"""Tiny runs that several test files read."""

import importlib.util

import pytest

if importlib.util.find_spec("hydra") is None:
    collect_ignore_glob = ["*"]  # the experiments need the extra of that name
else:
    from experiments import solve, training_report
    from tests.experiments.tiny_runs import EXPERIMENTS, call, tiny, train_tiny


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """One tiny run of every experiment config."""
    output = tmp_path_factory.mktemp("runs")
    for experiment in EXPERIMENTS:
        call(solve, *tiny(experiment, output))
    return output


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Both trainings with ours, without a constraint, and with a grid of two penalties."""
    output = tmp_path_factory.mktemp("trainings")
    for experiment in training_report.EXPERIMENTS:
        train_tiny(output, experiment)
        train_tiny(output, experiment, "method=unconstrained")
        train_tiny(output, experiment, "method=penalty", "choices.penalty.weight=[0.1,300.0]")
    return output
