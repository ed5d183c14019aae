"""What goes with the archives of a release: a chart that is one, notes of this version, checksums that hold."""

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from release.assets import release_notes, write_assets
from release.members import version


def test_notes_are_of_this_version_or_of_what_is_unreleased() -> None:
    dated = f"# Changelog\n\n## [Unreleased]\n\nlater\n\n## [{version()}] - 2026-01-01\n\nnow\n\n## [0.0.1]\n\nbefore\n"
    assert release_notes(dated) == f"# Tidegate {version()}\n\nnow\n"
    assert "later" in release_notes(dated.replace(f"[{version()}]", "[9.9.9]"))
    with pytest.raises(ValueError, match=r"CHANGELOG\.md: has no section .*; add one"):
        release_notes("# Changelog\n")


def test_every_file_is_listed_with_its_checksum(tmp_path: Path) -> None:
    (tmp_path / f"tidegate-{version()}.tar.gz").write_bytes(b"an archive")
    (tmp_path / "tidegate-0.0.0.tar.gz").write_bytes(b"of another version")
    installed = [{"name": "b", "version": "2", "license": ""}, {"name": "a", "version": "1", "license": "MIT"}]
    chart, _notes, bill, *_, checksums = write_assets(tmp_path, installed)
    with tarfile.open(chart) as archive:
        assert "tidegate/Chart.yaml" in archive.getnames()
    components = json.loads(bill.read_text())["components"]
    assert [each["purl"] for each in components] == ["pkg:pypi/a@1", "pkg:pypi/b@2"]
    lines = [line.split("  ") for line in checksums.read_text().splitlines()]
    expected = {path for path in tmp_path.iterdir() if path != checksums and "0.0.0" not in path.name}
    assert lines == [[hashlib.sha256(path.read_bytes()).hexdigest(), path.name] for path in sorted(expected)]
