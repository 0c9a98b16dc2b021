"""The Python blocks of README and docs run as printed, one after the other."""

import inspect
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from experiments.benchmarks import call_walk
from torch_powalm import Status, power_alm, prox

ROOT = Path(__file__).parent.parent


README = (ROOT / "README.md").read_text()


TRAINING = (ROOT / "docs" / "training.md").read_text()


LIGHTNING = (ROOT / "docs" / "lightning.md").read_text()


SOLVING = (ROOT / "docs" / "solving.md").read_text()


ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


DISTRIBUTED = (ROOT / "docs" / "distributed.md").read_text()


def assert_readme_ends_feasible(names):
    with torch.no_grad():
        value, _ = names["class_losses"](names["model"](names["x_all"]), names["target_all"])
    assert value.max() <= 0.35
    violations = names["constraints"].violations()
    assert violations["unit_rows"].max < 0.01
    assert violations["budget"].max == 0.0
    assert names["optimizer"].report().feasible


def test_every_block_runs_as_printed(tmp_path, capsys):
    first, solve = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    blocks = [first, *re.findall(r"```python\n(.*?)```", TRAINING, re.DOTALL), solve]
    assert len(blocks) == README.count("```python") + TRAINING.count("```python") == 7
    names = {"path": tmp_path / "state.pt"}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
        if block is first:
            assert_readme_ends_feasible(names)
    assert names["equation"].violations()["poisson"].max < 0.005 * torch.pi**2
    zeros = (names["sparse"][0].weight == 0).float().mean()
    assert 0.4 <= zeros < 1
    printed = capsys.readouterr().out
    assert "status            converged" in printed
    assert names["problem"].residuals(names["solution"].x, names["solution"].y).primal <= 1e-4


def test_the_solving_blocks_run_as_printed():
    _, solve = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    blocks = [solve, *re.findall(r"```python\n(.*?)```", SOLVING, re.DOTALL)]
    assert len(blocks) == 5
    names = {}
    for block in blocks:
        exec(compile(block, "solving.md", "exec"), names)


def test_the_solving_page_names_every_argument_term_and_status():
    arguments = set(inspect.signature(power_alm).parameters) - {"problem", "x_1", "sigma_1"}
    wanted = {*arguments, *(status.name for status in Status if status is not Status.MAX_ITER)}
    assert {name for name in wanted if f"`{name}`" not in SOLVING} == set()
    terms = set(prox.__all__) - {"Bounded", "Elementwise", "Proximable"}
    assert {name for name in terms if f"| `{name}(" not in SOLVING} == set()


@pytest.mark.filterwarnings("ignore")  # what Lightning says about small examples
def test_the_lightning_blocks_run_as_printed(tmp_path, capsys):
    names = {"folder": tmp_path}
    for block in re.findall(r"```python\n(.*?)```", LIGHTNING, re.DOTALL):
        exec(compile(block, "lightning.md", "exec"), names)
    metrics = names["trainer"].callback_metrics
    assert float(metrics["powalm/k"]) == 40  # a run of 600 steps has 40 updates
    assert float(metrics["powalm/max_violation"]) < 0.1
    assert Path(names["trainer"].checkpoint_callback.best_model_path).exists()
    assert names["state"]["step"] == 3


def test_the_distributed_block_runs_as_printed(tmp_path):
    (block,) = re.findall(r"```python\n(.*?)```", DISTRIBUTED, re.DOTALL)
    script = tmp_path / "train.py"
    script.write_text(block)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    one = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **one}
    result = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("update ") == 3


def test_the_counts_of_the_walk_are_those_of_the_code():
    walk = call_walk.traced()
    counts = len(walk.files), len(set(walk.files)), walk.returns()
    depths = {path[0].split(":")[1]: len(path) - 1 for path in walk.paths.values()}
    cells = [*counts, *(depths[name] for name in ("step", "augment", "update_multipliers"))]
    row = f"| now | {' | '.join(map(str, cells))} |"
    assert row in ARCHITECTURE.splitlines()


def test_the_readme_names_both_commands_and_stays_short():
    assert "make demo" in README
    assert "make test" in README
    assert len(README.splitlines()) <= 200
