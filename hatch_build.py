"""Completes the metadata of wheel and sdist: absolute links in the README, and the project's URLs.

In the repository the links of README.md are relative. A package index needs absolute ones, so they
get the address of the repository: POWALM_REPOSITORY if it is set, else what GitHub Actions says,
else that of the sdist, else the remote "origin". Without any of these, links and pictures are left
out rather than broken.
"""

import os
import re
import subprocess
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


class CustomMetadataHook(MetadataHookInterface):
    """Sets `readme` and `urls`."""

    def update(self, metadata: dict) -> None:
        """Fill in what pyproject.toml calls dynamic."""
        url = repository(Path(self.root))
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute_links(text, url)}
        metadata["urls"] = project_urls(url)


def repository(root: Path) -> str | None:
    """Return the address of the repository without a final slash, or None if nothing names it."""
    url = os.environ.get("POWALM_REPOSITORY")
    if not url and "GITHUB_REPOSITORY" in os.environ:
        server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
        url = f"{server}/{os.environ['GITHUB_REPOSITORY']}"
    if not url and (root / "PKG-INFO").exists():  # a wheel from the sdist
        found = re.search(r"^Project-URL: Source, (.*)$", (root / "PKG-INFO").read_text(), re.M)
        url = found.group(1) if found else None
    if not url and (root / ".git").exists():
        command = ["git", "-C", str(root), "remote", "get-url", "origin"]
        url = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    url = re.sub(r"^git@([^:]+):", r"https://\1/", url or "").removesuffix("/").removesuffix(".git")
    return url if url.startswith("https://") and "@" not in url else None


def absolute_links(text: str, url: str | None) -> str:
    """Rewrite the relative links and pictures of a Markdown text, or take them out."""
    is_release = os.environ.get("GITHUB_REF_TYPE") == "tag"
    version = os.environ["GITHUB_REF_NAME"] if is_release else "HEAD"

    def link(match: re.Match[str]) -> str:
        picture, label, target = match.groups()
        if url is None:
            return "" if picture else label
        return f"{picture}[{label}]({url}/{'raw' if picture else 'blob'}/{version}/{target})"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)


def project_urls(url: str | None) -> dict[str, str]:
    """Return the links beside the text of a package index."""
    if url is None:
        return {}
    host, _, path = url.removeprefix("https://").partition("/")
    owner, _, name = path.partition("/")
    urls = {
        "Source": url,
        "Changelog": f"{url}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{url}/issues",
    }
    if host == "github.com":
        urls = {"Documentation": f"https://{owner.lower()}.github.io/{name}/", **urls}
    return urls
