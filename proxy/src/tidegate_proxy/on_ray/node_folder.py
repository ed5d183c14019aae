"""Folder of an actor on its node, removed with the actor, or when the next one is created there."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "tidegate-ray-"
_LOCK: Final = "lock"


def own_folder() -> Path:
    """Create the folder, for its owner only, and remove those of killed processes. Raises OSError.

    The process holds a lock there until it exits.
    """
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError):  # it is held, gone, or another user's
            descriptor = os.open(lock, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(descriptor)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    before = folder / f"{_LOCK}.new"  # whoever sees the lock finds it held
    fcntl.flock(os.open(before, os.O_CREAT | os.O_RDONLY, 0o600), fcntl.LOCK_EX)
    before.rename(folder / _LOCK)
    return folder
