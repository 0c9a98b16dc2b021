"""Check every internal link of the built site: `python docs/check_links.py docs/_build/html`."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Collects the links, anchors and pictures of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {""}
        self.silent: list[str] = []  # pictures without an alternative text
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag links to."""
        values = dict(attrs)
        self.anchors |= {values.get("id") or "", values.get("name") or ""}
        for key in ("href", "src"):
            if values.get(key):
                self.links.append(values[key] or "")
        if tag == "img" and "alt" not in values:  # empty for a decoration
            self.silent.append(values.get("src") or "")


def problems(root: Path) -> list[str]:
    """Return dead links, outside resources and pictures without a text."""
    pages = {path: Page(path) for path in sorted(root.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        source = path.is_relative_to(root / "_modules")  # its anchors are those of viewcode
        found += [f"{path}: no alternative text: {source}" for source in page.silent]
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link.startswith("#!"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            if not target.exists():
                found.append(f"{path}: no such file: {link}")
            elif (
                target in pages
                and not source
                and unquote(parts.fragment) not in pages[target].anchors
            ):
                found.append(f"{path}: no such anchor: {link}")
    return found


if __name__ == "__main__":
    messages = problems(Path(sys.argv[1]).resolve())
    print("\n".join(messages) or "all internal links work")
    sys.exit(bool(messages))
