"""The committed results: few files, and reports and figures that follow from the tables."""

import subprocess
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from experiments import (
    gather,
    hydra_cli,
    reproduction_report,
    run_tables,
    solve,
    train,
    training_report,
)
from experiments.benchmarks import benchmark_report, summary
from experiments.benchmarks.outcome_table import RESULTS as BENCHMARKS
from experiments.benchmarks.outcome_table import read
from experiments.run_folder import differences
from tests.experiments.tiny_runs import ROOT

RESULTS = ROOT / "experiments" / "results"
RULES = {"paper": "paper_certified"}  # config files whose name is not that of their rule


@pytest.fixture(scope="module")
def runs():
    return run_tables.read(RESULTS)


def tracked(folder):
    command = ["git", "ls-files", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode != 0:
        pytest.skip("not a git checkout")
    return result.stdout.splitlines()


def test_at_most_60_files_of_results_are_tracked():
    assert 0 < len(tracked(RESULTS)) <= 60
    assert not [name for name in tracked(".") if "," in name]


def test_no_two_pictures_are_the_same():
    pictures = [path for path in RESULTS.rglob("*") if path.suffix in (".png", ".svg")]
    assert len(pictures) > 10
    assert len({path.read_bytes() for path in pictures}) == len(pictures)


def test_the_reproduction_report_follows_from_the_tables(runs):
    solved = [run for run in runs if "case" in run.config]
    text = reproduction_report.text(solved, Path("results/figures"))
    assert (ROOT / "experiments" / "REPRODUCTION.md").read_text() == text


def test_the_training_report_follows_from_the_tables(runs):
    trainings = [run for run in runs if run.config["name"] in training_report.EXPERIMENTS]
    costs = training_report.read_costs(RESULTS / "training_cost.csv")
    text = training_report.text(trainings, costs, Path("results/figures"))
    assert (ROOT / "experiments" / "TRAINING.md").read_text() == text


def test_the_benchmark_report_follows_from_the_tables():
    assert benchmark_report.REPORT.read_text() == benchmark_report.text(BENCHMARKS)


def test_every_figure_of_the_report_can_be_drawn_from_the_tables(runs):
    solved = [run for run in runs if "case" in run.config]
    names = {name for name, _ in gather.make_figures(solved)}
    wanted = {name for item in reproduction_report.ITEMS for name in item.figures}
    assert names == wanted
    committed = {path.stem for path in (RESULTS / "figures").glob("*.png")}
    assert committed == wanted | {"training", "certificates"}


def test_the_figure_of_the_trainings_can_be_drawn_from_the_tables(runs):
    trainings = [run for run in runs if run.config["name"] in training_report.EXPERIMENTS]
    assert len(training_report.figure(trainings).axes) == 4


def test_kept_runs_have_the_settings_of_the_configs(runs):
    """Else a run of today's configs would be refused by `gather --keep`."""
    with initialize_config_dir(hydra_cli.CONFIGS, version_base="1.3"):
        for run in runs[:: max(1, len(runs) // 60)]:
            config = run.config
            overrides = [f"experiment={config['name']}", f"seed={config['seed']}", "data.root=any"]
            if "case" in config:
                parts, rule = run.key.split("/"), RULES.get(config["rule"], config["rule"])
                solver = parts[1] if parts[0] == config["case"] else parts[0]
                overrides += [f"problem={config['case']}", f"solver={solver}", f"alm={rule}"]
                now = solve.settings(compose("solve", [*overrides, f"nu={config['nu']}"]))
            else:
                method, *power = run.key.split("/data=complete/")[0], config["method"].get("nu")
                overrides += [f"method={method}", *(f"method.nu={nu}" for nu in power if nu)]
                now = train.settings(compose("train", overrides))
            assert differences(config, now) == ""


def test_the_readme_agrees_with_the_benchmark_report():
    files = BENCHMARKS / "deterministic.csv", RESULTS / "overhead.csv", BENCHMARKS / "robust.csv"
    readme = (ROOT / "README.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in readme if line.startswith("|")]
    table = {row[1]: row for row in cells}
    for line in summary.summary_lines(*map(read, files)):
        if "n=" in line["task"]:
            _, _, peer, ratio, *_ = table[line["task"].replace("n=", "n = ")]
            assert peer.split(",")[0].split()[0] == line["best peer"].split(",")[0].split()[0]
            assert ratio.split(":")[0].split(";")[0] == line["ν = 1 / best peer"]
            assert ("not first" in ratio) == (line["first"] != "yes")
