"""The Python blocks of README and docs run as printed, one after the other."""

import importlib
import importlib.util
import inspect
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("lightning")

import torch_powalm.lightning
from experiments.benchmarks import call_walk
from torch_powalm import Status, integrations, power_alm, prox, solvers, zoo

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


README = (ROOT / "README.md").read_text()


TRAINING = (ROOT / "docs" / "training.md").read_text()


LIGHTNING = (ROOT / "docs" / "lightning.md").read_text()


SOLVING = (ROOT / "docs" / "solving.md").read_text()


ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


DISTRIBUTED = (ROOT / "docs" / "distributed.md").read_text()


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def assert_readme_ends_feasible(names):
    with torch.no_grad():
        value, _ = names["class_losses"](names["model"](names["x_all"]), names["target_all"])
    assert value.max() <= 0.35
    violations = names["constraints"].violations()
    assert violations["unit_rows"].max < 0.01
    assert violations["budget"].max == 0.0
    assert names["optimizer"].report().feasible


NO_END = {  # blocks that train with constraints and do not assert feasibility themselves
    ("README.md", 0): "assert_readme_ends_feasible does",
    ("index.md", 0): "test_the_first_page_ends_feasible does",
    ("tour.md", 1): "the next block asserts it",
    ("training.md", 2): "prox terms, no constraints",
    ("limits.md", 0): "errors, no training",
    ("coming_from/deepxde.md", 0): "DeepXDE alone, before",
    ("infeasible.md", 0): "asserts that the status is met",
    ("infeasible.md", 1): "asserts a status: not yet",
    ("infeasible.md", 2): "asserts a status: conflicting",
    ("infeasible.md", 3): "asserts a status: violated, wrong units",
    ("infeasible.md", 4): "asserts a status: violated, too short",
    ("infeasible.md", 5): "asserts a status: violated, impossible",
    ("infeasible.md", 7): "asserts the warning about oscillation",
}


def test_every_training_of_the_docs_asserts_that_it_ends_feasible():
    pages = {str(path.relative_to(DOCS)): path.read_text() for path in DOCS.rglob("*.md")}
    pages = {name: text for name, text in pages.items() if not name.startswith("generated")}
    without = set()
    for name, text in {"README.md": README, **pages}.items():
        for i, block in enumerate(blocks(text)):
            wraps = re.search(
                r"PowerALMOptimizer\(|build\(|constrain\(m|with_base\(|= fit\(", block
            )
            trains = re.search(r"\.step\(|\.fit\(|\.train\(|= fit\(", block)
            ends = re.search(r"^ *assert .*(\.feasible|<)", block, re.MULTILINE)
            if wraps and trains and not ends:
                without.add((name, i))
    assert without == set(NO_END)


def test_every_block_runs_as_printed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, solve = blocks(README)
    names = {}
    for block in [first, *blocks(TRAINING), solve]:
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
    names = {}
    for block in [blocks(README)[1], *blocks(SOLVING)]:
        exec(compile(block, "solving.md", "exec"), names)
    assert names["solution"].status is Status.CONVERGED


ELSEWHERE = {
    "index.md",
    "coming_from/deepxde.md",
    "training.md",
    "solving.md",
    "lightning.md",
    "distributed.md",
    "zoo.md",
    "certificates.md",
}  # own tests
NEEDS = {
    "coming_from/cooper.md": "cooper",
    "coming_from/fairlearn.md": "fairlearn",
    "engines.md": "transformers",
    "api/engines.md": "deepxde",
}
PAGES = [
    str(path.relative_to(DOCS))
    for path in sorted(DOCS.rglob("*.md"))
    if not path.is_relative_to(DOCS / "generated") and "```python" in path.read_text()
]


@pytest.fixture
def every_warning():
    """Torch warns once per process, on whichever page comes first."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.mark.filterwarnings("default::torch_powalm.ConstraintWarning")  # pages show them
@pytest.mark.filterwarnings("error:::docs")  # of code on the page
@pytest.mark.filterwarnings("default")  # other libraries give some
@pytest.mark.parametrize("page", [page for page in PAGES if page not in ELSEWHERE])
def test_the_blocks_of_a_page_run_as_printed(page, tmp_path, every_warning, monkeypatch):
    if page in NEEDS:
        pytest.importorskip(NEEDS[page])
    monkeypatch.chdir(tmp_path)  # for the files they write
    names = {"__name__": "docs"}
    for block in blocks((DOCS / page).read_text()):
        exec(compile(block, page, "exec"), names)
    assert not [name for name in names if name.startswith("test_")]


def test_no_python_of_ours_is_hidden_in_another_kind_of_block():
    for path in DOCS.rglob("*.md"):
        for block in re.findall(r"```text\n(.*?)```", path.read_text(), re.DOTALL):
            assert "torch_powalm" not in block


def test_the_first_page_ends_feasible():
    names = {}
    (block,) = blocks((DOCS / "index.md").read_text())
    assert len([line for line in block.splitlines() if line.strip()]) <= 20
    exec(compile(block, "index.md", "exec"), names)
    with torch.no_grad():
        missed = (names["model"](names["x"])[names["sick"] == 1] <= 0).float().mean()
    assert missed <= 0.11
    assert names["optimizer"].report().feasible


API = {path.name: path.read_text() for path in sorted((DOCS / "api").glob("*.md"))}
PUBLIC = {
    *torch_powalm.__all__,
    *prox.__all__,
    *solvers.__all__,
    *torch_powalm.lightning.__all__,
    *zoo.__all__,
    *integrations.__all__,
    *("augment_loss", "configs", "register", "write_result", "constrain"),  # modules of engines
}


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_has_a_reference_and_an_example(name):
    found = [text for text in API.values() if re.search(rf"\b{name}\b", "".join(blocks(text)))]
    assert found, f"no example uses {name}"
    directives = "".join(
        block for text in API.values() for block in re.findall(r"```{eval-rst}(.*?)```", text, re.S)
    )
    assert re.search(rf"auto.*\b{name}\b|members:.*\b{name}\b", directives)


def test_our_row_of_the_front_doors_is_counted():
    counts = [len(blocks((DOCS / page).read_text())) for page in PAGES]
    names = f"with an example of each of the {len(PUBLIC)} public names"
    cell = f"all {sum(counts)} blocks of {len(counts)} pages, {names}"
    scripts = len(list((DOCS / "gallery").glob("plot_*.py")))
    row = f"| yes | {scripts}, {scripts} | {scripts} | {cell} |"
    assert row in (ROOT / "experiments" / "FRONT_DOORS.md").read_text()


def test_every_report_is_a_page_of_the_site(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(DOCS), *sys.path])
    pages = set(importlib.import_module("repository_pages").PAGES.values())
    reports = {str(path.relative_to(ROOT)) for path in (ROOT / "experiments").glob("*.md")}
    assert reports <= pages
    listed = (DOCS / "index.md").read_text()
    shown = importlib.import_module("repository_pages").PAGES
    assert all(f"\ngenerated/{name}\n" in listed for name in shown)


def test_the_solving_page_names_every_argument_term_and_status():
    arguments = set(inspect.signature(power_alm).parameters) - {"problem", "x_1", "sigma_1"}
    wanted = {*arguments, *(status.name for status in Status if status is not Status.MAX_ITER)}
    assert {name for name in wanted if f"`{name}`" not in SOLVING} == set()
    terms = set(prox.__all__) - {"Bounded", "Elementwise", "Proximable"}
    assert {name for name in terms if f"| `{name}(" not in SOLVING} == set()


@pytest.mark.filterwarnings("ignore")  # what Lightning says about small examples
def test_the_lightning_blocks_run_as_printed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks(LIGHTNING):
        exec(compile(block, "lightning.md", "exec"), names)
    metrics = names["trainer"].callback_metrics
    assert float(metrics["powalm/k"]) == 40  # a run of 600 steps has 40 updates
    assert float(metrics["powalm/max_violation"]) < 0.01
    assert Path(names["trainer"].checkpoint_callback.best_model_path).exists()
    assert names["state"]["step"] == 3


def run_alone(blocks, script, **variables):
    """Run blocks in a process of their own, and return what they print."""
    script.write_text("".join(blocks))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    result = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_distributed_block_runs_as_printed(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    one = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    printed = run_alone(blocks(DISTRIBUTED), tmp_path / "train.py", **one)
    assert printed.count("update ") == 30  # and it asserts that it is feasible


def test_the_deepxde_blocks_run_as_printed(tmp_path):
    if importlib.util.find_spec("deepxde") is None:  # importing it here would fix its backend
        pytest.skip("deepxde is not installed")
    page = (DOCS / "coming_from" / "deepxde.md").read_text()
    printed = run_alone(blocks(page), tmp_path / "pde.py", DDE_BACKEND="pytorch")  # it asserts
    assert re.search(r"condition_0 +met", printed)


def test_the_counts_of_the_walk_are_those_of_the_code():
    walk = call_walk.traced()
    counts = len(walk.files), len(set(walk.files)), walk.returns()
    depths = {path[0].split(":")[1]: len(path) - 1 for path in walk.paths.values()}
    cells = [*counts, *(depths[name] for name in ("step", "augment", "update_multipliers"))]
    row = f"| now | {' | '.join(map(str, cells))} |"
    assert row in ARCHITECTURE.splitlines()


def test_programs_of_newcomers_are_short_and_on_their_page():
    page = (ROOT / "experiments" / "NEWCOMERS.md").read_text()
    programs = sorted((ROOT / "experiments" / "newcomers").rglob("*.py"))
    assert len(programs) == 18
    for path in programs:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
        assert len(lines) < 40
        assert re.search(rf"`({path.name}|{path.parent.name}/)` .*\| {len(lines)} ", page)


def test_the_readme_names_both_commands_and_stays_short():
    assert "make demo" in README
    assert "make test" in README
    assert len(README.splitlines()) <= 200
