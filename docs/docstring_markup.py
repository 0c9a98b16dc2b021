"""Turns the plain-text docstrings of the package into markup for Sphinx.

The docstrings are written for readers of the source: formulas and code are indented, and stars,
bars and underscores mean what they look like. This module marks them as literal text.
"""

import re
from typing import Any

_SECTIONS = ("Args:", "Returns:", "Raises:", "Attributes:", "Yields:")
_SPECIAL = re.compile(r"(\*|\||_(?=\W|$)|`(?=`))")


def mark(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Rewrite the lines of a docstring in place."""
    lines[:] = list(_marked(lines))


def _marked(lines: list[str]) -> list[str]:
    out: list[str] = []
    section, block = "", False  # the current section; inside an indented block
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent == 0:
            block = False
            section = line.strip() if line.strip() in (*_SECTIONS, "Example:") else ""
            if section == "Example:":
                out += ["", ".. rubric:: Example", ""]
                continue
        if section in _SECTIONS or not line.strip():
            out.append(_escaped(line) if section in _SECTIONS else line)
            continue
        if indent and not block:
            block = True
            out += ["", ".. code-block:: python" if section == "Example:" else "::", ""]
        out.append(line if block else _escaped(line))
    return out


def _escaped(line: str) -> str:
    """Escape markup outside of backticks, and turn single backticks into literals."""
    parts = line.split("`")
    if len(parts) % 2 == 0:  # a pair goes over two lines
        return _SPECIAL.sub(r"\\\1", line)
    text = [f"``{part}``" if i % 2 else _SPECIAL.sub(r"\\\1", part) for i, part in enumerate(parts)]
    return "".join(text)
