"""Finishes the built pages for keyboards and screen readers, where theme and extensions do not."""

from pathlib import Path
from typing import Any

REPLACEMENTS = (
    # Code and tables that scroll sideways can be reached with the Tab key.
    ("<pre>", '<pre tabindex="0">'),
    (
        '<div class="table-wrapper',
        '<div tabindex="0" role="group" aria-label="table" class="table-wrapper',
    ),
    # Two sidebars need two names, and a heading a level.
    ('<aside class="sidebar-drawer"', '<aside aria-label="pages" class="sidebar-drawer"'),
    ('<aside class="toc-drawer', '<aside aria-label="on this page" class="toc-drawer'),
    (
        '<div id="search-results"></div>',
        '<h1>Search</h1><div id="search-results" role="region"></div>',
    ),
    (' role="heading"><span class="caption', ' role="heading" aria-level="2"><span class="caption'),
)


def finish(app: Any, error: Exception | None) -> None:
    """Rewrite the pages of a finished build; a page that was finished before stays as it is."""
    if error is None and app.builder.name == "html":
        for path in Path(app.outdir).rglob("*.html"):
            text = path.read_text(encoding="utf-8")
            finished = finished_page(text)
            if finished != text:
                path.write_text(finished, encoding="utf-8")


def finished_page(text: str) -> str:
    """Return a page with what its theme leaves out."""
    for before, after in REPLACEMENTS:
        text = text.replace(before, after)
    return text
