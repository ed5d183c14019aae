"""The distributions of this repository, what each says of itself, and what they share: one version, one license."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Member:
    """One distribution."""

    folder: Path
    manifest: dict[str, Any]
    """What its pyproject.toml says."""

    @property
    def name(self) -> str:
        """What it is installed by."""
        name: str = self.manifest["project"]["name"]
        return name

    @property
    def import_name(self) -> str:
        """What it is imported by, and what its archives' names begin with."""
        return self.name.replace("-", "_")

    @property
    def requirements(self) -> Iterator[str]:
        """Everything that it asks for, with its extras."""
        project = self.manifest["project"]
        yield from project["dependencies"]
        for extra in project.get("optional-dependencies", {}).values():
            yield from extra


def version() -> str:
    """The version of all members: what the file VERSION says."""
    return (ROOT / "VERSION").read_text().strip()


def members() -> list[Member]:
    """All that are released: the workspace without the plugin that is there to be copied."""
    workspace = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["workspace"]
    excluded = {ROOT / folder for folder in workspace["exclude"]}
    folders = {
        manifest.parent for pattern in workspace["members"] for manifest in ROOT.glob(f"{pattern}/pyproject.toml")
    }
    return [
        Member(folder, tomllib.loads((folder / "pyproject.toml").read_text())) for folder in sorted(folders - excluded)
    ]


def problems_of() -> list[str]:
    """What of the members' sources does not go together, a line each."""
    major, minor, *_ = version().split(".")
    series, license = f"~={major}.{minor}.0", (ROOT / "LICENSE").read_text()
    problems = []
    for member in members():
        where = f"{member.folder.relative_to(ROOT)}/pyproject.toml"
        if "version" not in member.manifest["project"].get("dynamic", ()):
            problems.append(f"{where}: its version must come from VERSION: dynamic")
        for requirement in member.requirements:
            sibling = re.fullmatch(r"(tidegate[a-z-]*)(\[.*?\])?(.*)", requirement)
            # A distribution's own extras are of its own version.
            if sibling and sibling[1] != member.name and sibling[3] != series:
                problems.append(f"{where}: {requirement!r} must ask for {sibling[1]}{sibling[2] or ''}{series}")
        if not (member.folder / "LICENSE").exists() or (member.folder / "LICENSE").read_text() != license:
            problems.append(f"{member.folder.relative_to(ROOT)}/LICENSE: must be a copy of LICENSE")
    chart = (ROOT / "deploy/helm/tidegate/Chart.yaml").read_text()
    fields = (f"version: {version()}", f'appVersion: "{version()}"')
    problems += [f"deploy/helm/tidegate/Chart.yaml: must say {f}" for f in fields if f not in chart.splitlines()]
    return problems
