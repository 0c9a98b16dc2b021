"""Form of the experiments' code: public names only, names of files, their length."""

import ast
from collections import Counter

import pytest

import torch_powalm
from tests.experiments.tiny_runs import ROOT

FILES = sorted((ROOT / "experiments").rglob("*.py"))
PUBLIC = {"torch_powalm", "torch_powalm.prox", "torch_powalm.solvers", "torch_powalm.lightning"}
PUBLIC |= {"torch_powalm.integrations"}
ENGINES = ("huggingface", "hydra_configs", "sweep")
PUBLIC |= {f"torch_powalm.integrations.{name}" for name in ENGINES}
VAGUE = {"watch", "killable", "entry", "rows", "requirements", "report", "progress", "utils"}


def imported(path):
    """Modules and names of torch_powalm that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_experiments_use_public_names_of_the_package(path):
    for module, name in imported(path):
        if module.split(".")[0] == "torch_powalm":
            assert module in PUBLIC
            if module == "torch_powalm" and name is not None:
                assert name in torch_powalm.__all__


def test_a_file_name_says_what_is_inside_and_occurs_once():
    names = [path.stem for path in FILES if path.stem != "__init__"]
    paths = (ROOT / "torch_powalm").rglob("*.py")
    package = {path.stem for path in paths if path.parent.name != "template"} - {"__init__"}
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert set(names) & (VAGUE | package) == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_have_at_most_250_lines_and_functions_50(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 250
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 50, node.name
