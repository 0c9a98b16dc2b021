"""The tests themselves: each of them asserts something, and no file is long."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
TREES = {path: ast.parse(path.read_text()) for path in sorted(TESTS.rglob("*.py"))}
LONGEST = 500  # lines


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def claims(function: ast.AST, helpers: set[str]) -> bool:
    """Whether a function has an assertion, expects an error or a warning, or calls a helper."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in {"pytest.raises", "pytest.warns", "torch.testing.assert_close", *helpers}:
                return True
    return False


def asserting_helpers() -> set[str]:
    """The functions assert_… and check_… of the tests that assert, if need be by each other."""
    named = [
        function
        for tree in TREES.values()
        for function in functions(tree)
        if function.name.startswith(("assert_", "check_"))
    ]
    helpers: set[str] = set()
    while more := {f.name for f in named if claims(f, helpers)} - helpers:
        helpers |= more
    return helpers


HELPERS = asserting_helpers()


def test_every_test_asserts_something() -> None:
    silent = [
        f"{path.relative_to(TESTS)}: {function.name}"
        for path, tree in TREES.items()
        for function in functions(tree)
        if function.name.startswith("test_") and not claims(function, HELPERS)
    ]
    assert silent == []


def test_no_file_is_long() -> None:
    lengths = {str(path.relative_to(TESTS)): len(path.read_text().splitlines()) for path in TREES}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_a_test_without_an_assertion_is_found() -> None:
    silent = ast.parse("def test_it():\n    check_checkpoint(path)")
    assert not claims(silent, HELPERS)
    assert claims(ast.parse("def test_it():\n    assert_same(a, b)"), HELPERS)
