"""What lacks something is not released: archives made up here, of which one thing each is wrong."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from release.archives import problems_of
from release.members import version

METADATA = f"""\
Metadata-Version: 2.4
Name: tidegate-acme
Version: {version()}
Summary: When they come
Author: The Tidegate authors
License-Expression: Apache-2.0
License-File: LICENSE
Keywords: acme
Requires-Python: >=3.11
Classifier: Programming Language :: Python :: 3.11
Classifier: Typing :: Typed

# tidegate-acme
"""
INFO = f"tidegate_acme-{version()}.dist-info"
WHEEL = {
    f"{INFO}/METADATA": METADATA,
    f"{INFO}/licenses/LICENSE": "",
    f"{INFO}/entry_points.txt": "",
    "tidegate_acme/__init__.py": "",
    "tidegate_acme/py.typed": "",
}
SOURCE = {"PKG-INFO": METADATA, "LICENSE": "", "README.md": "", "pyproject.toml": ""}


def _wheel(folder: Path, files: dict[str, str]) -> Path:
    path = folder / f"tidegate_acme-{version()}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return path


def _source(folder: Path, files: dict[str, str | None]) -> Path:
    """One whose file is None is a link."""
    path = folder / f"tidegate_acme-{version()}.tar.gz"
    with tarfile.open(path, "w:gz") as source:
        for name, text in files.items():
            info = tarfile.TarInfo(f"tidegate_acme-{version()}/{name}")
            info.size = len(text or "")
            info.type = tarfile.SYMTYPE if text is None else tarfile.REGTYPE
            source.addfile(info, io.BytesIO((text or "").encode()))
    return path


def test_nothing_is_wrong(tmp_path: Path) -> None:
    assert problems_of(_wheel(tmp_path, WHEEL)) == []
    assert problems_of(_source(tmp_path, {**SOURCE})) == []


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (f"{INFO}/METADATA", f"it is not of version {version()}"),
        (f"{INFO}/licenses/LICENSE", "no license"),
        (f"{INFO}/entry_points.txt", "no entry point: Tidegate does not find it"),
        ("tidegate_acme/py.typed", "no tidegate_acme/py.typed: its importers get no types"),
    ],
)
def test_a_wheel_that_lacks_something(missing: str, said: str, tmp_path: Path) -> None:
    assert problems_of(_wheel(tmp_path, {name: text for name, text in WHEEL.items() if name != missing})) == [said]


def test_a_wheel_that_has_too_much(tmp_path: Path) -> None:
    (said,) = problems_of(_wheel(tmp_path, {**WHEEL, "tests/test_tides.py": ""}))
    assert said == "it would install tests beside its package"


@pytest.mark.parametrize("missing", ["LICENSE", "README.md", "pyproject.toml"])
def test_a_source_distribution_that_lacks_something(missing: str, tmp_path: Path) -> None:
    files: dict[str, str | None] = {name: text for name, text in SOURCE.items() if name != missing}
    assert problems_of(_source(tmp_path, files)) == [f"no {missing}"]


def test_a_source_distribution_with_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    assert problems_of(_source(tmp_path, {**SOURCE, "LICENSE": None})) == ["LICENSE is a link"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Summary: When they come", "its metadata has no Summary"),
        ("Author: The Tidegate authors", "its metadata has no Author"),
        ("License-Expression: Apache-2.0", "its metadata has no License-Expression"),
        ("License-File: LICENSE", "its metadata has no License-File"),
        ("Keywords: acme", "its metadata has no Keywords"),
        ("Requires-Python: >=3.11", "its metadata has no Requires-Python"),
        ("\n# tidegate-acme", "its metadata has no Description"),
        ("Classifier: Typing :: Typed", "its classifiers lack Typing :: Typed"),
        ("Classifier: Programming Language :: Python :: 3.11", "its classifiers name no Python"),
    ],
)
def test_metadata_that_lack_something(line: str, said: str, tmp_path: Path) -> None:
    told = METADATA.replace(f"{line}\n", "")
    assert problems_of(_wheel(tmp_path, {**WHEEL, f"{INFO}/METADATA": told})) == [said]
    assert problems_of(_source(tmp_path, {**SOURCE, "PKG-INFO": told})) == [said]


def test_metadata_of_another_version(tmp_path: Path) -> None:
    told = METADATA.replace(f"Version: {version()}", "Version: 9.9.9")
    (said,) = problems_of(_source(tmp_path, {**SOURCE, "PKG-INFO": told}))
    assert said == f"its metadata says version 9.9.9, and VERSION says {version()}"
