"""The configuration that is in force, for the process that is started in another one's place."""

import logging
import os
from pathlib import Path

from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.reload import diff

log = logging.getLogger(__name__)


class KeptConfig:
    """What processes of one sort have taken up, in a file that outlives each of them.

    What the configuration's own file says may have changed since, or be half written: nobody has asked for that yet.
    """

    def __init__(self, file: Path, first: ServeConfig) -> None:
        """`first`: what is in force until another one is taken up. The file need not be there."""
        self._file = file
        self._first = first

    def read(self) -> ServeConfig:
        """What is in force. Raises OSError."""
        try:
            text = self._file.read_bytes()
        except FileNotFoundError:
            return self._first
        return ServeConfig.model_validate_json(text)

    def keep(self, taken_up: ServeConfig) -> None:
        """Have it in force, but for what only a restart of all brings; where that cannot be, the log says so."""
        effective = diff(self._first, taken_up).effective
        beside = self._file.with_suffix(f".{os.getpid()}")
        try:
            beside.write_text(effective.model_dump_json(exclude_unset=True), encoding="utf-8")
            beside.replace(self._file)
        except OSError as error:
            log.error("the configuration is in force, and not kept for a process that is started again: %s", error)
