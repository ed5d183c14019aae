"""Files of a deployment, sent to Ray's nodes through its object store."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from tidegate.schemas import DeployedWorker

References = Mapping[str, Any]
"""Objects of files, by their paths in the deployment's folder."""
_BOARDS: Final = "boards"
_CONFIG: Final = "config.pbtxt"


class StoredFiles:
    """Files of this machine in Ray's object store. Each is stored once, however many repositories link to it."""

    def __init__(self, ray: Any, folder: Path) -> None:  # noqa: ANN401 - a module
        self._ray = ray
        self._folder = folder.absolute()
        self._objects: dict[tuple[int, int], Any] = {}
        """The objects of files, by device and inode."""

    def forget(self) -> None:
        """Store files again, as Ray may wait for copies on a lost node."""
        self._objects.clear()

    def of_workers(self, workers: Iterable[DeployedWorker]) -> References:
        """Return the model repositories of workers. Raises OSError."""
        paths = [
            path
            for worker in workers
            for path in sorted((self._folder / worker.repository).rglob("*"))
            if path.is_file()
        ]
        return {str(path.relative_to(self._folder)): self._put(path) for path in paths}

    def of(self, paths: Iterable[Path]) -> References:
        """Return the files that are in the folder; others must exist on the nodes already. Raises OSError."""
        inside = [path for path in paths if path.absolute().is_relative_to(self._folder)]
        return {str(path.absolute().relative_to(self._folder)): self._put(path) for path in inside}

    def _put(self, path: Path) -> Any:  # noqa: ANN401 - a reference
        found = path.stat()
        key = found.st_dev, found.st_ino
        if key not in self._objects:
            self._objects[key] = self._ray.put(np.fromfile(path, np.uint8))
        return self._objects[key]


def write_files(ray: Any, references: References, folder: Path, former: str) -> None:  # noqa: ANN401
    """Write files into a folder of this node, for its owner only; files with several names are copied. Raises OSError.

    `ray`: the module `ray`. `former`: their original folder, which is replaced in the configuration of models.
    """
    contents = ray.get(list(references.values()))
    for path, content in zip(references, contents, strict=True):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        data = memoryview(content)
        if target.name == _CONFIG:
            data = memoryview(bytes(data).replace(former.encode(), str(folder).encode()))
        with open(target, "wb", opener=_private) as file:
            file.write(data)
    (folder / _BOARDS).mkdir(exist_ok=True)  # where emulated GPUs meet


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
