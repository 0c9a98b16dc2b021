"""What the package is made of: who imports whom, what it needs, what a wheel holds."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "torch_powalm"
ALLOWED = {
    # the core of both routes
    "functional": set(),
    "prox": {"prox"},
    "result": set(),
    "dual": {"functional", "result"},
    # the training route
    "sharding": {"functional"},
    "blocks": {"functional", "result"},
    "ranks": {"blocks"},
    "constraints": {"blocks", "ranks", "result", "sharding"},
    "batch": {"blocks"},
    "vector": {"blocks", "functional", "result", "sharding"},
    "injection": {"functional", "ranks", "sharding", "vector"},
    "wrapper": set(),
    "lagrangian": {"constraints", "dual", "functional", "result", "sharding", "vector"},
    "epoch": {"batch", "constraints", "vector"},
    "gradient": {
        *("batch", "blocks", "epoch", "functional", "injection", "lagrangian", "prox", "ranks"),
        *("result", "sharding", "vector"),
    },
    "step": {"batch", "gradient", "prox", "sharding", "wrapper"},
    "checkpoint": {"blocks", "epoch", "gradient", "lagrangian"},
    "optimizer": {
        *("blocks", "checkpoint", "constraints", "dual", "epoch", "gradient", "lagrangian"),
        *("prox", "ranks", "result", "step", "wrapper"),
    },
    "files": set(),
    "stateful": {"optimizer"},
    "lightning": {"constraints", "files", "lightning", "optimizer", "ranks", "result"},
    "plot": set(),
    # the solving route: solvers see ψ and g, and nothing of y, β or A
    "solvers": {"prox", "result", "solvers"},
    "oracle": set(),
    "progress": {"result"},
    "problem": {"dual", "functional", "oracle", "prox", "result"},
    "feasibility": {"functional", "problem", "prox", "result", "solvers"},
    "multipliers": {"problem", "prox", "result", "solvers"},
    "certificate": {"dual", "multipliers", "oracle", "problem", "result"},
    "linearisation": {"problem"},
    "active_set": {"certificate", "linearisation", "problem", "prox"},
    "start": {"dual", "feasibility", "functional", "oracle", "problem"},
    "outlook": {"certificate", "feasibility", "oracle", "problem", "result"},
    "tolerance": {"dual", "result"},
    "outer": {
        *("active_set", "certificate", "dual", "oracle", "outlook", "problem", "result", "solvers"),
        "tolerance",
    },
    "alm": {"dual", "outer", "outlook", "problem", "progress", "result", "solvers", "start"},
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.module == "torch_powalm":
                yield from (f"torch_powalm.{alias.name}" for alias in node.names)
            else:
                yield node.module


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_a_module_imports_only_what_its_row_allows(path):
    names = list(imports(path))
    own = {name.split(".")[1] for name in names if name.startswith("torch_powalm.")}
    row = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if row != "__init__":
        assert own <= ALLOWED[row]
    outside = {name.split(".")[0] for name in names} - {"torch_powalm", "torch"}
    optional = {"matplotlib"} if row in ("plot", "result") else set()  # inside of functions
    assert outside <= set(sys.stdlib_module_names) | optional


def test_importing_needs_torch_alone():
    code = (
        "import sys, torch; before = set(sys.modules); import torch_powalm; "
        "new = {m.split('.')[0] for m in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names) - {'torch_powalm', 'torch'}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr


@pytest.mark.slow
def test_a_wheel_holds_the_package_and_nothing_else(tmp_path):
    uv = Path(sys.executable).parent / "uv"
    command = [str(uv), "build", "--wheel", "--quiet", "--out-dir", str(tmp_path), str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "torch_powalm/py.typed" in names
    assert {name.split("/")[0] for name in names} == {
        "torch_powalm",
        "torch_powalm-0.1.0.dist-info",
    }
