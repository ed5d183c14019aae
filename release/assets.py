"""The files of a release beside its archives: chart, pages, notes, bill of materials (SBOM), checksums."""

import hashlib
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from release.members import ROOT, version

SITE: Final = ROOT / "build" / "site"
CHART: Final = ROOT / "deploy" / "helm" / "tidegate"
CHECKSUMS_NAME: Final = "SHA256SUMS"
# In a process of its own: Helm is written in Go, whose runtime would stay.
_PACKAGE_CHART: Final = "import sys, helm_python; print(helm_python.package(sys.argv[1], destination=sys.argv[2]))"


def write_assets(folder: Path, installed: Iterable[Mapping[str, str]]) -> list[Path]:
    """Write all files into the folder of the archives and return them; the checksums are the last.

    Without a built site the pages are left out. `installed`: name, version and license of every distribution that
    `tidegate[all]` installs.
    """
    assets = [_chart(folder), _notes(folder), _bill_of_materials(folder, installed)]
    if (SITE / version()).is_dir():
        assets.append(_pages(folder))
    return [*assets, _checksums(folder)]


def release_notes(changelog: str) -> str:
    """Return the changes of this version, or the unreleased ones if the changelog does not name it yet.

    Raises ValueError if it has neither.
    """
    sections = {section.split("]")[0]: section for section in changelog.split("\n## [")[1:]}
    section = sections.get(version()) or sections.get("Unreleased")
    if section is None:
        raise ValueError(f"CHANGELOG.md: has no section [{version()}] or [Unreleased]; add one")
    return f"# Tidegate {version()}\n{section.partition(chr(10))[2]}"


def _chart(folder: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-c", _PACKAGE_CHART, CHART, folder], capture_output=True, text=True, check=True
    )
    return Path(done.stdout.strip())


def _notes(folder: Path) -> Path:
    notes = folder / f"release-notes-{version()}.md"
    notes.write_text(release_notes((ROOT / "CHANGELOG.md").read_text()))
    return notes


def _bill_of_materials(folder: Path, installed: Iterable[Mapping[str, str]]) -> Path:
    """Write a CycloneDX document of what `tidegate[all]` installs."""
    components = [
        {
            "type": "library",
            "name": each["name"],
            "version": each["version"],
            "purl": f"pkg:pypi/{each['name']}@{each['version']}",
            **({"licenses": [{"license": {"name": each["license"]}}]} if each["license"] else {}),
        }
        for each in sorted(installed, key=lambda each: each["name"])
    ]
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "tidegate", "version": version()}},
        "components": components,
    }
    bill = folder / f"tidegate-sbom-{version()}.cdx.json"
    bill.write_text(json.dumps(document, indent=1) + "\n")
    return bill


def _pages(folder: Path) -> Path:
    pages = folder / f"tidegate-docs-{version()}.tgz"
    with tarfile.open(pages, "w:gz") as archive:
        archive.add(SITE / version(), f"tidegate-docs-{version()}")
    return pages


def _checksums(folder: Path) -> Path:
    """Write what `sha256sum --check` reads, to be signed: one signature then covers all files."""
    checksums = folder / CHECKSUMS_NAME
    files = sorted(file for file in folder.iterdir() if file.is_file() and file != checksums and version() in file.name)
    lines = (f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    checksums.write_text("".join(lines))
    return checksums
