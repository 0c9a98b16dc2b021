"""Adds Markdown files outside docs/ to the site; links work there and in the repository.

In the repository, pages link to `../experiments/BENCHMARKS.md` or `gallery/plot_heat_pinn.py`.
On the site these are `generated/benchmarks` and `auto_gallery/plot_heat_pinn`.
"""

import os
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGES = {
    "benchmarks": "experiments/BENCHMARKS.md",
    "constraint_bench": "experiments/CONSTRAINTS.md",
    "trainings": "experiments/TRAINING.md",
    "reproduction": "experiments/REPRODUCTION.md",
    "certificate_coverage": "experiments/CERTIFICATES.md",
    "cutest": "experiments/CUTEST.md",
    "defaults": "experiments/DEFAULTS.md",
    "feasible_learning": "experiments/FEASIBLE_LEARNING.md",
    "attacks": "experiments/ATTACKS.md",
    "newcomers": "experiments/NEWCOMERS.md",
    "front_doors": "experiments/FRONT_DOORS.md",
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "security": "SECURITY.md",
    "code_of_conduct": "CODE_OF_CONDUCT.md",
}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def write(app: Any) -> None:
    """Copy the pages to docs/generated, with links that work from there."""
    folder = DOCS / "generated"
    folder.mkdir(exist_ok=True)
    for name, path in PAGES.items():
        if (ROOT / path).exists():
            text = _relinked((ROOT / path).read_text(), (ROOT / path).parent, folder)
            target = folder / f"{name}.md"
            if not target.exists() or target.read_text() != text:
                target.write_text(text)


def relink(app: Any, docname: str, source: list[str]) -> None:
    """Point the links of a page in docs/ to pages of the site."""
    folder = (DOCS / docname).parent
    if folder.name not in ("generated", "auto_gallery"):
        source[0] = _relinked(source[0], folder, folder)


def _relinked(text: str, origin: Path, folder: Path) -> str:
    """Rewrite relative links of a text that moves from one folder to another."""

    def link(match: re.Match[str]) -> str:
        image, label, target, anchor = match.groups()
        if "://" in target or target.startswith(("mailto:", "/")):
            return match.group(0)
        path = (origin / target).resolve()
        found = _page(path)
        if found is None and not image and not path.is_file():
            return f"`{label.strip('`')}`"  # a folder is not part of the site
        where = os.path.relpath(found or path, folder)
        return f"{image}[{label}]({where}{anchor or ''})"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(p if p.startswith("```") else _LINK.sub(link, p) for p in parts)


def _page(path: Path) -> Path | None:
    """Return the page of the site that shows a file of the repository, if there is one."""
    if path.parent == DOCS / "gallery":
        name = "index" if path.suffix == ".rst" else path.stem
        return DOCS / "auto_gallery" / f"{name}.rst"
    for name, shown in PAGES.items():
        if path == ROOT / shown:
            return DOCS / "generated" / f"{name}.md"
    return path if path.is_relative_to(DOCS) and path.suffix == ".md" else None
