"""Atomic replacement of a folder."""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

from tidegate_repo_generator.model import GenerateError

CONFIG_FILE = "config.pbtxt"


def check_target(target: Path, *, force: bool) -> None:
    """Raise GenerateError if the folder `target` may not be written (`force`: an existing model is replaced)."""
    if not os.path.lexists(target):
        return
    if not force:
        raise GenerateError(f"{target} exists: replace it with --force, or choose another --name")
    if not (target / CONFIG_FILE).is_file():
        raise GenerateError(
            f"{target} exists and is no model of Triton's (it has no {CONFIG_FILE}): remove it yourself, or choose "
            "another --name"
        )


def write_model(target: Path, files: Mapping[PurePosixPath, Path | str]) -> None:
    """Write a model's folder `target` with `files`: path inside it -> file to be copied, or text.

    The previous contents of `target` are replaced as a whole, and stay unchanged if writing fails. Missing parent
    folders are created. Raises GenerateError if the file system refuses.
    """

    def fill(new: Path) -> None:
        for path, content in files.items():
            destination = new / path
            destination.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str):
                destination.write_text(content, encoding="utf-8")
            else:
                shutil.copyfile(content, destination)

    replace_folder(target, fill, in_repository=True)


def replace_folder(target: Path, fill: Callable[[Path], None], *, in_repository: bool) -> None:
    """Have `fill` write a new folder and put it in place of `target`; if it raises, `target` stays unchanged.

    `in_repository`: Triton may be polling the parent folder of `target`. Missing parent folders are created. Raises
    GenerateError if the file system refuses, and what `fill` raises.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        place = _workshop(target.parent) if in_repository else target.parent
        with tempfile.TemporaryDirectory(dir=place, prefix=".tidegate-") as workshop:
            new, old = Path(workshop, "new"), Path(workshop, "old")
            new.mkdir()
            fill(new)
            _swap(new, target, old)
    except OSError as error:
        raise GenerateError(f"{target} cannot be written: {error}") from error


def _workshop(repository: Path) -> Path:
    """Where to build: beside the repository, for Triton takes every folder inside it for a model, hidden ones too.

    Inside it only where its parent cannot be written or is another file system, from which nothing can be renamed.
    """
    parent = repository.resolve().parent
    usable = os.access(parent, os.W_OK) and parent.stat().st_dev == repository.stat().st_dev
    return parent if usable else repository


def _swap(new: Path, target: Path, old: Path) -> None:
    """Put `new` in the place of `target`, which goes to `old`: two renames, an instant apart."""
    replaces = os.path.lexists(target)
    if replaces:
        target.rename(old)
    try:
        new.rename(target)
    except OSError:
        if replaces:
            old.rename(target)
        raise
