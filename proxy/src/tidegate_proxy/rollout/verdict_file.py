"""File with the verdicts on new versions, which a restart of Tidegate reads again."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

log = logging.getLogger(__name__)


class StoredVerdict(msgspec.Struct, frozen=True):
    """Verdict on a candidate, with the configuration of the rollout that it is for."""

    model: str
    rollout: dict[str, Any]
    """Settings of `rollouts.versions.NAME` other than defaults."""
    state: Annotated[str, msgspec.Meta(pattern="^(promoted|undone)$")]
    why: str


class VerdictFile:
    """Reader and writer of the file. It is replaced as a whole, so that a crash leaves no half of it."""

    def __init__(self, path: Path | None) -> None:
        """Read the file; without one, or if it cannot be read, there are no verdicts. `path`: None stores nothing."""
        self.path = path
        self._stored: tuple[StoredVerdict, ...] = ()
        """Verdicts in the file."""
        self._complaint = ""
        """Error of the latest attempt to write."""
        if path is None or not path.exists():
            return
        try:
            self._stored = msgspec.json.decode(path.read_bytes(), type=tuple[StoredVerdict, ...])
        except (OSError, msgspec.DecodeError) as error:
            remedy = "new versions are compared again; remove the file, or restore it and restart Tidegate"
            detail = f"{path}: cannot be read as verdicts ({error}); {remedy}"
            log.error("verdicts on versions lost", extra={"detail": detail})

    def find(self, model: str, rollout: dict[str, Any]) -> StoredVerdict | None:
        """Return the verdict of a model's rollout; None if there is none for this configuration."""
        return next((each for each in self._stored if (each.model, each.rollout) == (model, rollout)), None)

    def differs(self, verdicts: Sequence[StoredVerdict]) -> bool:
        """Return whether the file has other verdicts than these."""
        return self.path is not None and self._stored != tuple(verdicts)

    def write(self, verdicts: Sequence[StoredVerdict]) -> None:
        """Replace the verdicts in the file; log a failure once. Call it in a thread: a disk may be slow."""
        assert self.path is not None, "there is no file to write"
        new = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            new.write_bytes(msgspec.json.format(msgspec.json.encode(verdicts), indent=2) + b"\n")
            new.replace(self.path)
        except OSError as error:
            if self._complaint != str(error):
                self._complaint = str(error)
                detail = f"{self.path}: {error}; make it writable, or a restart compares again"
                log.error("verdicts on versions not stored", extra={"detail": detail})
            return
        self._stored, self._complaint = tuple(verdicts), ""
