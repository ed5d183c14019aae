"""Checks of the contents of wheels and source distributions before they are published."""

import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

from release.members import version

FIELDS = ("Summary", "Author", "License-Expression", "License-File", "Requires-Python", "Keywords", "Description")
"""Fields of the metadata that none may lack."""
TYPED = "Typing :: Typed"


def problems_of(archive: Path) -> list[str]:
    """What is wrong with a wheel or a source distribution, a line each."""
    return _problems_of_wheel(archive) if archive.suffix == ".whl" else _problems_of_source(archive)


def _problems_of_wheel(archive: Path) -> list[str]:
    with zipfile.ZipFile(archive) as wheel:
        names = wheel.namelist()
        package = archive.name.partition("-")[0]
        info = f"{package}-{version()}.dist-info"
        if f"{info}/METADATA" not in names:
            return [f"it is not of version {version()}"]
        problems = _problems_of_metadata(wheel.read(f"{info}/METADATA").decode())
        if f"{package}/py.typed" not in names:
            problems.append(f"no {package}/py.typed: its importers get no types")
        if f"{info}/licenses/LICENSE" not in names:
            problems.append("no license")
        if f"{info}/entry_points.txt" not in names and package != "tidegate_triton_models":
            problems.append("no entry point: Tidegate does not find it")
        strangers = sorted({name.partition("/")[0] for name in names} - {package, info})
        if strangers:
            problems.append(f"it would install {', '.join(strangers)} beside its package")
    return problems


def _problems_of_source(archive: Path) -> list[str]:
    with tarfile.open(archive) as source:
        files = {member.name.partition("/")[2]: member for member in source.getmembers()}
        told = source.extractfile(files["PKG-INFO"])
        assert told is not None
        problems = _problems_of_metadata(told.read().decode())
    problems += [f"no {name}" for name in ("LICENSE", "README.md", "pyproject.toml") if name not in files]
    problems += [f"{name} is a link" for name, member in files.items() if member.issym()]
    return problems


def _problems_of_metadata(text: str) -> list[str]:
    told = HeaderParser().parsestr(text)
    given = dict(told.items()) | {"Description": told.get_payload()}
    problems = [f"its metadata has no {field}" for field in FIELDS if not given.get(field)]
    if told["Version"] != version():
        problems.append(f"its metadata says version {told['Version']}, and VERSION says {version()}")
    classifiers = told.get_all("Classifier", [])
    if TYPED not in classifiers:
        problems.append(f"its classifiers lack {TYPED}")
    if not any(classifier.startswith("Programming Language :: Python :: 3.") for classifier in classifiers):
        problems.append("its classifiers name no Python")
    return problems
