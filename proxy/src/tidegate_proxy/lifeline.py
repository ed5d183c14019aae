"""How others see whether a process that made regions of shared memory has ended: it holds a lock on a file until then.

Its number would not tell: in a container that starts anew beside the same /dev/shm, every process is number 1.
"""

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

from tidegate_proxy.reserved_names import OWN

_SUFFIX: Final = ".lock"


class Lifeline:
    """One process's, from when it is made until `close`, or until the process ends in whatever way."""

    def __init__(self, folder: Path) -> None:
        """`folder`: where the regions are. What is left there of others that have ended is removed. Raises OSError."""
        for path in folder.glob(f"{OWN}*{_SUFFIX}"):
            has_ended(folder, path.name.removeprefix(OWN).removesuffix(_SUFFIX))
        self.name = secrets.token_hex(8)
        """Goes into the names of the regions."""
        self._path = _path(folder, self.name)
        before = self._path.with_suffix(".new")  # whoever sees the file finds it locked
        self._descriptor = os.open(before, os.O_CREAT | os.O_EXCL | os.O_RDONLY, 0o644)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        before.rename(self._path)

    def close(self) -> None:
        """No region is left."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def has_ended(folder: Path, name: str) -> bool:
    """Whether the process that has, or had, the lifeline of that name has ended."""
    path = _path(folder, name)
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # of somebody else, who is to see to it
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(PermissionError):
            for region in folder.glob(f"{OWN}{name}-*"):  # that it was about to show to a Triton as it was killed
                region.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _path(folder: Path, name: str) -> Path:
    return folder / f"{OWN}{name}{_SUFFIX}"
