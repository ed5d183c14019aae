"""Which page of the site a file of the repository is."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = "docs/"
API: Final = ("api", "toolkit", "schemas", "control", "observation", "testing")
"""Packages of `tidegate` that plugins may import: each has a page of the API."""
SOURCE: Final = "source/"
"""Where files are shown unchanged that pages link to and that are no pages themselves."""


def members() -> list[Path]:
    """The READMEs of all distributions, relative to the repository."""
    found = [*ROOT.glob("*/README.md"), *ROOT.glob("plugins/*/README.md")]
    return sorted(path.relative_to(ROOT) for path in found if (path.parent / "pyproject.toml").exists())


def page_of(path: str) -> str:
    """The page, relative to the site, that shows a file or folder of the repository; both with forward slashes.

    Raises FileNotFoundError for a folder that has no README.
    """
    if (ROOT / path).is_dir():
        path = f"{path.rstrip('/')}/README.md"
        if not (ROOT / path).exists():
            raise FileNotFoundError(path)
    if path.startswith(DOCS):
        return path.removeprefix(DOCS)
    if path == "README.md":
        return "index.md"
    if path in {"CONTRIBUTING.md", "CHANGELOG.md"}:
        return f"development/{path.lower()}"
    if path.endswith("/README.md"):
        name = path.removesuffix("/README.md")
        return f"{name}.md" if name.startswith("plugins/") else f"development/{name}.md"
    return f"{SOURCE}{path}.md"
