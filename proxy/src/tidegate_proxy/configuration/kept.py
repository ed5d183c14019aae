"""The configuration that is in force, for the process that is started in another one's place."""

import logging
import os
import pickle
from pathlib import Path
from typing import Final

from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.reload import diff

log = logging.getLogger(__name__)
_OWNERS: Final = 0o600
"""Nobody else may read it: it has secrets in it."""


class KeptConfig:
    """What processes of one sort have taken up, in a file that outlives each of them.

    What the configuration's own file says may have changed since, or be half written: nobody has asked for that yet.
    The file is in a folder of the supervisor's own. It is no JSON, in which secrets would be asterisks.
    """

    def __init__(self, file: Path, first: ServeConfig) -> None:
        """`first`: what is in force until another one is taken up. The file need not be there."""
        self._file = file
        self._first = first

    def read(self) -> ServeConfig:
        """What is in force; where it cannot be read, what was in force at first, which the log says."""
        try:
            kept = pickle.loads(self._file.read_bytes())  # a file that only this user can write
        except FileNotFoundError:
            return self._first
        except Exception as error:  # whatever is wrong with it, the process has to start
            log.error("the configuration that was taken up last cannot be read, so that of the start is: %s", error)
            return self._first
        assert isinstance(kept, ServeConfig)
        return kept

    def keep(self, taken_up: ServeConfig) -> None:
        """Have it in force, but for what only a restart of all brings; where that cannot be, the log says so."""
        effective = diff(self._first, taken_up).effective
        beside = self._file.with_suffix(f".{os.getpid()}")
        try:
            beside.touch(mode=_OWNERS)
            beside.write_bytes(pickle.dumps(effective))
            beside.replace(self._file)
        except Exception as error:  # it is in force all the same
            log.error("the configuration is in force, and not kept for a process that is started again: %s", error)
