"""Tiny runs of the experiments, and their command lines in this process."""

import csv
import sys
from pathlib import Path

from hydra import compose, initialize_config_dir

from experiments import hydra_cli

ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted(
    path.stem
    for path in (ROOT / "configs" / "experiment").glob("*.yaml")
    if "experiments.solve" in path.read_text()  # the others are trainings
)
TINY = {
    "clustering_mnist": ["n=40", "problem.r=4", "problem.s=3"],
    "clustering_fashion": ["n=40", "problem.r=4", "problem.s=3"],
    "qp": ["n=12", "problem.m=3"],
    "gevp": ["n=15"],
}
TRAINING = ["++features.training.hidden=8", "++features.training.max_epochs=1"]


def call(script, *overrides):
    old = sys.argv
    sys.argv = ["script", *overrides]
    try:
        hydra_cli.run(script.main)
    finally:
        sys.argv = old


def case_of(experiment):
    with initialize_config_dir(hydra_cli.CONFIGS, version_base="1.3"):
        return compose("solve", [f"experiment={experiment}"]).case


def tiny(experiment, output):
    case = case_of(experiment)
    overrides = [f"experiment={experiment}", f"output={output}", "progress=false", *TINY[case]]
    overrides += ["++alm.max_outer=2", "++alm.max_inner=30"]
    if case.startswith("clustering"):
        overrides += [f"features.cache={output}/features", *TRAINING]
    return overrides


def train_tiny(output, experiment, *overrides):
    from experiments import train

    sizes = ["++schedule.n=400", "schedule.epochs=2"]
    sizes += ["++schedule.hidden=16", "schedule.batch_size=64"]
    call(train, f"experiment={experiment}", f"output={output}", *sizes, *overrides)


def rows_of(path):
    return list(csv.DictReader(path.read_text().splitlines()))
