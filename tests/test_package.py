"""What the package is made of: who imports whom, what it needs, what a wheel holds."""

import ast
import importlib.metadata
import os
import re
import runpy
import subprocess
import sys
import types
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import yaml

import torch_powalm

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "torch_powalm"
CORE = {"functional", "dual", "result", "checks"}
ALLOWED = {  # the ten rows of docs/architecture.md
    "functional, result": set(),
    "checks": {"checks"},
    "prox": {"prox", "functional"},  # for the one norm
    "dual": {"functional", "result", "checks"},
    "solvers": {"solvers", "prox", "result"},
    "training": {"training", "prox", *CORE},
    "solving": {"solving", "solvers", "prox", *CORE},
    "lightning, integrations": {"lightning", "integrations", "training", "result", "checks"},
    "certification": {"certification", "training", *CORE},
    "zoo": {"zoo", "training", "prox", "result"},
}
PLOTS = ("result", "training", "lightning", "certification")
OPTIONAL = {row: {"matplotlib"} for row in PLOTS}  # in functions
OPTIONAL["integrations"] = {"matplotlib", "hydra", "omegaconf"}  # the template needs Hydra


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.module == "torch_powalm":
                yield from (f"torch_powalm.{alias.name}" for alias in node.names)
            else:
                yield node.module


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_a_module_imports_only_what_its_row_allows(path):
    names = list(imports(path))
    own = {name.split(".")[1] for name in names if name.startswith("torch_powalm.")}
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if "template" in path.parts:  # a user's project, with public names
        own = {name for name in own if not hasattr(torch_powalm, name)}
    if part not in ("__init__", "plot"):  # the public names, and the command line
        (row,) = (row for row in ALLOWED if part in row.split(", "))
        assert own <= ALLOWED[row]
    outside = {name.split(".")[0] for name in names} - {"torch_powalm", "torch"}
    assert outside <= set(sys.stdlib_module_names) | OPTIONAL.get(part, set())


def test_the_rows_are_those_of_the_documentation():
    lines = (ROOT / "docs" / "architecture.md").read_text().splitlines()
    start = lines.index("| part | may import | outside |") + 2
    table = [line.split(" | ")[0].removeprefix("| ") for line in lines[start : start + 11]]
    assert table == [*ALLOWED, ""]
    assert len(ALLOWED) == 10


TUPLE = {"_replace", "_asdict", "_fields"}  # public in spite of the underscore
PRIVATE = {"training/optimizer_protocol.py", "lightning/compat.py"}


def private_names(path):
    """Names of torch and Lightning with a leading underscore, and frames and wrapped functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("torch_powalm"):
            yield from (alias.name for alias in node.names if alias.name.startswith("_"))
        elif isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "other")
            if node.attr in ("__wrapped__", "__code__"):
                yield node.attr
            elif re.match(r"_[^_]", node.attr) and not own and node.attr not in TUPLE:
                yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("getattr", "setattr", "hasattr"):
                names = [a.value for a in node.args if isinstance(a, ast.Constant)]
                yield from (n for n in names if re.match(r"_[^_]", str(n)))


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_private_names_of_torch_and_lightning_stand_in_two_files(path):
    if str(path.relative_to(PACKAGE)) not in PRIVATE:
        assert list(private_names(path)) == []


def test_the_search_for_private_names_finds_them():
    found = set(private_names(PACKAGE / "training" / "optimizer_protocol.py"))
    assert {"_getframe", "_profiler_enabled", "__wrapped__", "_fsdp_flattened"} <= found


BANNED = set(
    "outlook outer start step vector injection epoch stateful files loading flavours faces watch "
    "killable entry rows requirements utils common core helpers misc".split()
)


@pytest.mark.parametrize("tree", ["torch_powalm", "experiments", "tests", "configs", "docs"])
def test_the_name_of_a_file_says_what_is_inside(tree):
    names = {path.stem.removeprefix("test_") for path in (ROOT / tree).rglob("*.*")}
    assert names & BANNED == set()


def test_no_file_is_long():
    lengths = {str(p): len(p.read_text().splitlines()) for p in PACKAGE.rglob("*.py")}
    assert {name: length for name, length in lengths.items() if length > 250} == {}


def test_the_root_holds_what_both_routes_share():
    """`plot` is the command `python -m torch_powalm.plot`."""
    names = {path.stem for path in PACKAGE.glob("*.py")}
    assert names == {"__init__", "functional", "dual", "result", "plot"}


def test_no_two_files_have_the_same_name():
    """But for `__init__`, and the template, which is a project of its own."""
    paths = (p for tree in ("torch_powalm", "experiments") for p in (ROOT / tree).rglob("*.py"))
    names = [path.stem for path in paths if "template" not in path.parts]
    assert [n for n, count in Counter(names).items() if count > 1 and n != "__init__"] == []


def test_dir_shows_public_names_only():
    names = dir(torch_powalm)
    assert set(names) == {*torch_powalm.__all__, "__version__"}
    assert all(hasattr(torch_powalm, name) for name in names)


def test_the_version_is_that_of_the_package():
    assert torch_powalm.__version__ == importlib.metadata.version("torch-powalm")


def test_importing_needs_torch_alone():
    code = (
        "import sys, torch; before = set(sys.modules); import torch_powalm; "
        "new = {m.split('.')[0] for m in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names) - {'torch_powalm', 'torch'}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr


@pytest.fixture
def build_hook(monkeypatch):
    """hatch_build.py; hatchling itself is only installed where a wheel is built."""
    interface = types.SimpleNamespace(MetadataHookInterface=object)
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    for name in ("POWALM_REPOSITORY", "GITHUB_REPOSITORY", "GITHUB_REF_TYPE"):
        monkeypatch.delenv(name, raising=False)
    return types.SimpleNamespace(**runpy.run_path(str(ROOT / "hatch_build.py")))


def test_links_of_the_readme_become_absolute_or_go(build_hook, monkeypatch):
    readme = (ROOT / "README.md").read_text()
    relative = [path for path in re.findall(r"\]\(([^)]+)\)", readme) if "://" not in path]
    assert relative
    assert all((ROOT / path).is_file() for path in relative)
    text = build_hook.absolute_links(readme, "https://github.com/a/b")
    for path in relative:
        kind = "raw" if path.endswith(".png") else "blob"
        assert f"](https://github.com/a/b/{kind}/HEAD/{path})" in text
        assert f"]({path})" not in text
    monkeypatch.setenv("GITHUB_REF_TYPE", "tag")
    monkeypatch.setenv("GITHUB_REF_NAME", "v1.2.3")
    assert "/blob/v1.2.3/docs/" in build_hook.absolute_links(readme, "https://github.com/a/b")
    without = build_hook.absolute_links(readme, None)
    assert not re.search(r"\]\((?!https?:)", without)
    assert "experiments/results/figures" not in without


def test_the_address_of_the_repository_is_found(build_hook, monkeypatch, tmp_path):
    assert build_hook.repository(tmp_path) is None
    assert build_hook.project_urls(None) == {}
    (tmp_path / "PKG-INFO").write_text("Name: a\nProject-URL: Source, https://github.com/p/q\n")
    assert build_hook.repository(tmp_path) == "https://github.com/p/q"
    monkeypatch.setenv("GITHUB_REPOSITORY", "Some/thing")
    assert build_hook.repository(tmp_path) == "https://github.com/Some/thing"
    monkeypatch.setenv("POWALM_REPOSITORY", "git@gitlab.com:x/y.git")
    assert build_hook.repository(tmp_path) == "https://gitlab.com/x/y"
    assert "Documentation" not in build_hook.project_urls("https://gitlab.com/x/y")
    urls = build_hook.project_urls("https://github.com/Some/thing")
    assert urls["Documentation"] == "https://some.github.io/thing/"
    monkeypatch.setenv("POWALM_REPOSITORY", "https://user:token@example.com/x")
    assert build_hook.repository(tmp_path) is None


def test_workflows_call_targets_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = set()
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        assert isinstance(yaml.safe_load(path.read_text())["jobs"], dict)
        called |= set(re.findall(r"\bmake ([a-z-]+)", path.read_text()))
    assert {"docs", "package"} <= called <= targets


def test_the_matrix_workflow_runs_every_corner_of_the_command():
    command = (ROOT / ".ci" / "matrix").read_text()
    corners = re.findall(r'^  echo "([a-z-]+)\|', command, re.MULTILINE)
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "matrix.yml").read_text())["jobs"]
    run = [name for job in jobs.values() for name in job["strategy"]["matrix"]["corner"]]
    assert sorted(run) == sorted(corners)
    assert len(corners) == 6
    for job in jobs.values():
        assert any(
            ".ci/matrix ${{ matrix.corner }}" in step.get("run", "") for step in job["steps"]
        )
    found = subprocess.run([ROOT / ".ci" / "matrix", "nowhere"], capture_output=True, text=True)
    assert found.returncode == 2
    assert "no corner nowhere; there are: core-oldest " in found.stderr


@pytest.mark.slow
def test_a_wheel_holds_the_package_and_nothing_else(tmp_path):
    uv = Path(sys.executable).parent / "uv"
    if not uv.exists():
        pytest.skip("needs uv beside Python")
    command = [str(uv), "build", "--wheel", "--quiet", "--out-dir", str(tmp_path), str(ROOT)]
    environment = {**os.environ, "POWALM_REPOSITORY": "https://github.com/a/b"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    (path,) = tmp_path.glob("*.whl")
    wheel, info = zipfile.ZipFile(path), f"torch_powalm-{torch_powalm.__version__}.dist-info"
    assert "torch_powalm/py.typed" in wheel.namelist()
    assert {name.split("/")[0] for name in wheel.namelist()} == {"torch_powalm", info}
    metadata = wheel.read(f"{info}/METADATA").decode()
    assert "Project-URL: Source, https://github.com/a/b" in metadata
    assert "](https://github.com/a/b/blob/HEAD/docs/index.md)" in metadata
