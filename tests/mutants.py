"""Mutation testing of the formulas, the dual state and the certificate: `make mutants`.

Each mutant changes one operator, number or condition, by way of cosmic-ray, or one max or min. The
tests of its module run on it in a forked process, which saves the import of torch and leaves the
files alone. A mutant that no test notices has survived. MUTANTS.md lists the survivors and why they
may survive; the run fails if one is missing there, or if fewer than 90 % of the mutants are killed.

    python -m tests.mutants [FILE …]
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.abc
import importlib.util
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

ROOT = Path(__file__).parent.parent
LIST = Path(__file__).with_name("MUTANTS.md")
ENOUGH = 0.9  # of the mutants must be killed
FORMULAS = ["tests/test_functional.py", "tests/test_dual_units.py", "tests/test_dual.py"]
CERTIFICATE = ["tests/test_result.py", "tests/solving/test_kkt_certificate.py"]


OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
OPTIONS += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins are already imported


class Target(NamedTuple):
    """A module, the class or method of it that is mutated (all if empty), and its tests."""

    path: str
    part: str
    tests: list[str]


TARGETS = [
    Target("torch_powalm/functional.py", "", FORMULAS),
    Target("torch_powalm/dual.py", "", FORMULAS[::-1]),
    Target("torch_powalm/result.py", "Residuals", CERTIFICATE),
    Target("torch_powalm/solving/problem.py", "Problem.measure", CERTIFICATE),
    Target("torch_powalm/solving/problem.py", "Problem.residuals_of", CERTIFICATE),
    Target("torch_powalm/solving/kkt_certificate.py", "", CERTIFICATE[::-1]),
]
# Changes that type checks or the first call would reveal, such as + for <<, are left out.
OPERATORS = [
    *(f"ReplaceBinaryOperator_{change}" for change in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul")),
    *(f"ReplaceBinaryOperator_{change}" for change in ("Pow_Mul", "BitAnd_BitOr")),
    *(f"ReplaceComparisonOperator_{change}" for change in ("Lt_LtE", "Lt_Gt", "LtE_Lt", "LtE_Gt")),
    *(f"ReplaceComparisonOperator_{change}" for change in ("Gt_GtE", "Gt_Lt", "GtE_Gt", "GtE_Lt")),
    *(f"ReplaceComparisonOperator_{change}" for change in ("Eq_NotEq", "NotEq_Eq")),
    *(f"ReplaceComparisonOperator_{change}" for change in ("Is_IsNot", "IsNot_Is")),
    *(f"ReplaceUnaryOperator_Delete_{removed}" for removed in ("USub", "Invert", "Not")),
    *("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue"),
    *("ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceBreakWithContinue"),
    *("NumberReplacer", "ZeroIterationForLoop"),
]


EXTREMA = {
    **{"max": "min", "min": "max", "maximum": "minimum", "amax": "amin"},
    "hypot": "hypot",
}


class Mutant(NamedTuple):
    """The changed source of a module, and the line that differs."""

    target: Target
    line: int
    before: str
    after: str
    code: str

    def __str__(self) -> str:
        return f"`{self.before}` → `{self.after}`"


def mutants(target: Target) -> Iterator[Mutant]:
    """All mutants of a target that compile, by line."""
    source = (ROOT / target.path).read_text()
    first, last = _lines(source, target.part)
    found: dict[str | None, Mutant | None] = {_meaning(source): None}  # 1e30 + 1 is 1e30
    for line, code in (*_changed_operators(source), *_changed_extrema(source)):
        meaning = _meaning(code)
        if first <= line <= last and meaning is not None and meaning not in found:
            pairs = zip(source.splitlines(), code.splitlines(), strict=False)
            before, after = next((a, b) for a, b in pairs if a != b)
            found[meaning] = Mutant(target, line, before.strip(), after.strip(), code)
    return iter(sorted(filter(None, found.values()), key=lambda mutant: mutant.line))


def _changed_operators(source: str) -> Iterator[tuple[int, str]]:
    """The changes of cosmic-ray, each with its line."""
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        nodes = ast_nodes(get_ast(source))
        lines = [start[0] for node in nodes for start, _ in operator.mutation_positions(node)]
        for occurrence, line in enumerate(lines):
            code = mutate_code(source, operator, occurrence)
            if code is not None and "/, " not in code and "/,\n" not in code:  # of a signature
                yield line, code


def _changed_extrema(source: str) -> Iterator[tuple[int, str]]:
    """Every max, min and hypot with one of its arguments left out, and max and min exchanged."""
    encoded = source.encode()
    starts = [0]  # of the lines; columns count bytes
    for line in encoded.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(node: ast.expr) -> tuple[int, int]:
        end = starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)
        return starts[node.lineno - 1] + node.col_offset, end

    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        (begin, end), (_, after_name) = span(call), span(call.func)
        name = ast.unparse(call.func).rpartition(".")[2]
        other = EXTREMA.get(name)
        if other is None:
            continue
        head, tail = encoded[:begin], encoded[end:]
        if other != name:
            before_name = after_name - len(name)
            swapped = encoded[:before_name] + other.encode() + encoded[after_name:]
            yield call.lineno, swapped.decode()
        if len(call.args) == 2 and not any(isinstance(a, ast.Starred) for a in call.args):
            for argument in call.args:
                kept = b"(" + encoded[slice(*span(argument))] + b")"
                yield call.lineno, (head + kept + tail).decode()


def _lines(source: str, part: str) -> tuple[int, int]:
    """First and last line of a class or method."""
    node: ast.AST = ast.parse(source)
    if not part:
        return 1, len(source.splitlines())
    for name in part.split("."):
        node = next(n for n in ast.iter_child_nodes(node) if getattr(n, "name", None) == name)
    return node.lineno, node.end_lineno or node.lineno  # type: ignore[attr-defined]


def _meaning(code: str) -> str | None:
    """The syntax tree without needless negations, None if the code does not parse."""
    try:
        return ast.dump(_Negations().visit(ast.parse(code)))
    except SyntaxError:
        return None


class _Negations(ast.NodeTransformer):
    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        opposite = {ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
        inner = self.visit(node.operand)
        if not isinstance(node.op, ast.Not):
            return ast.UnaryOp(node.op, inner)
        if isinstance(inner, ast.Compare) and len(inner.ops) == 1:
            if type(inner.ops[0]) in opposite:
                return ast.Compare(inner.left, [opposite[type(inner.ops[0])]()], inner.comparators)
        if isinstance(inner, ast.UnaryOp) and isinstance(inner.op, ast.Not):
            return inner.operand
        return ast.UnaryOp(node.op, inner)


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a given source."""

    def __init__(self, path: str, code: str) -> None:
        self.name = path.removesuffix(".py").replace("/", ".")
        self.path, self.code = str(ROOT / path), code

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.code, self.path, "exec"), module.__dict__)


def passes(target: Target, code: str, timeout: float, modules: Path | None = None) -> bool:
    """Whether all tests pass on this source; an endless loop does not.

    The names of the modules that they import are written to a file, if one is given.
    """
    pid = os.fork()
    if pid == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        sys.meta_path.insert(0, Mutated(target.path, code))
        status = 1
        try:
            status = int(pytest.main([*OPTIONS, *target.tests]))
            if modules is not None:
                modules.write_text("\n".join(sys.modules))
        finally:
            os._exit(status)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def warm_up(target: Target) -> float:
    """Run the tests on the source as it is; return the seconds that a mutant may take.

    What they import, but for the package and the tests, is imported here and shared by all forks.
    """
    source = (ROOT / target.path).read_text()
    with tempfile.TemporaryDirectory() as folder:
        modules = Path(folder) / "modules"
        if not passes(target, source, 600.0, modules):
            raise SystemExit(f"the tests of {target.path} must pass before it is mutated")
        for name in modules.read_text().splitlines():
            if name.split(".")[0] not in ("torch_powalm", "tests", "experiments", "__main__"):
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
    start = time.monotonic()
    passes(target, source, 600.0)
    return 10.0 + 5 * (time.monotonic() - start)


def survivors(target: Target) -> tuple[int, list[Mutant]]:
    """How many mutants a target has, and those that live."""
    start = time.monotonic()
    timeout = warm_up(target)
    total, alive = 0, []
    for mutant in mutants(target):
        total += 1
        if passes(target, mutant.code, timeout):
            alive.append(mutant)
    seconds = time.monotonic() - start
    print(f"{target.path}: {total - len(alive)} of {total} killed, {seconds:.0f} s", flush=True)
    return total, alive


def main() -> None:
    os.chdir(ROOT)
    torch.set_num_threads(1)
    chosen = [t for t in TARGETS if t.path in sys.argv[1:] or not sys.argv[1:]]
    total, alive = 0, []
    for target in chosen:
        count, living = survivors(target)
        total, alive = total + count, alive + living
    killed = 1 - len(alive) / total
    print(f"{killed:.1%} of {total} mutants killed")
    known = LIST.read_text()
    unknown = [mutant for mutant in alive if str(mutant) not in known]
    for mutant in alive:
        note = f"  (not in {LIST.name})" if mutant in unknown else ""
        print(f"{mutant.target.path}:{mutant.line}: {mutant}{note}")
    sys.exit(int(killed < ENOUGH or bool(unknown)))


if __name__ == "__main__":
    main()
