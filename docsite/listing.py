"""What the sidebar lists, what the first page of a section does, and the versions of a site."""

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any, Final

from packaging.version import Version

from docsite.places import API, DOCS, ROOT, members, page_of

HERE: Final = "<!-- the site lists the pages of this section here -->"
"""What in the first page of a section becomes a list of the others."""
FIRST: Final = {
    "tutorials": ["operator.md", "first-policy.md", "researcher.md"],
    "reference": ["config.md", "cli.md", "plugins.md", "metrics.md", "scenario.md", "hooks.md"],
    "results": ["no_regret.md", "gpu.md"],
}
"""What comes first; the others follow in the order of their titles."""
RELEASE: Final = "how-to/release.md"
"""Page for maintainers, listed under Development."""

REDIRECT: Final = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={0}/index.html">'
    '<a href="{0}/index.html">Tidegate {0}</a>\n'
)
"""First page of a site, which leads to a version."""


def navigation() -> list[dict[str, Any]]:
    """The sidebar: what is in the folders."""
    plugins = [page_of(str(path)) for path in members() if path.parts[0] == "plugins"]
    others = [page_of(str(path)) for path in members() if path.parts[0] != "plugins"]
    api = {"API": ["reference/api.md", *(f"reference/api/{package}.md" for package in API)]}
    changes = ["architecture.md", page_of("CONTRIBUTING.md"), RELEASE, page_of("CHANGELOG.md")]
    return [
        {"Home": ["index.md", "start.md", "concepts.md", "faq.md"]},
        {"Tutorials": _section("tutorials")},
        {"How to": [page for page in _section("how-to") if page != RELEASE]},
        {"Reference": [*(page for page in _section("reference") if page != "reference/api.md"), api]},
        {"Plugins": ["plugins/README.md", *plugins]},
        {"Results": _section("results")},
        {"Development": [*changes, {"Distributions": others}]},
    ]


def with_list(text: str, page: str) -> str:
    """The text of the first page of a section, with a list of the others where it wants one."""
    if HERE not in text:
        return text
    section = PurePosixPath(page).parent.name
    others = (name for name in _section(section) if name != page)
    return text.replace(HERE, "\n".join(_line(PurePosixPath(name).name, section) for name in others))


def _section(section: str) -> list[str]:
    """The pages of a folder of docs/, that about all of them first."""
    folder = ROOT / DOCS / section
    first = ["README.md", *FIRST.get(section, [])]
    rest = sorted(
        {path.name for path in folder.glob("*.md")} - set(first), key=lambda name: _title(section, name).lower()
    )
    return [f"{section}/{name}" for name in [*first, *rest]]


def _title(section: str, name: str) -> str:
    return title_of((ROOT / DOCS / section / name).read_text(encoding="utf-8"))


def _line(name: str, section: str) -> str:
    return f"- [{_title(section, name)}]({name})"


def title_of(text: str) -> str:
    """The first heading."""
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    if found is None:
        raise ValueError("a page without a title")
    return found[1]


def list_versions(site: Path) -> None:
    """Write `versions.json` and the first page of a site, which leads to the newest version."""
    versions = sorted((path.parent.name for path in site.glob("*/index.html")), key=Version, reverse=True)
    listed = [{"version": name, "title": name, "aliases": []} for name in versions]
    (site / "versions.json").write_text(json.dumps(listed), encoding="utf-8")
    (site / "index.html").write_text(REDIRECT.format(versions[0]), encoding="utf-8")
