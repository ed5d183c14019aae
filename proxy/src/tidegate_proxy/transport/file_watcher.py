"""Watcher of files that may change while Tidegate runs: certificates, tokens."""

from collections.abc import Iterable
from pathlib import Path

from tidegate_proxy.configuration.config import ServeConfig

_Stamp = tuple[int, int, int] | None


class WatchedFiles:
    """Files that are checked for changes. A check costs one stat per file.

    Links are followed: Kubernetes replaces mounted secrets by moving a link.
    """

    def __init__(self, paths: Iterable[Path | None]) -> None:
        self._paths = [path for path in paths if path is not None]
        self._stamps = self._look()

    def changed(self) -> bool:
        """Return whether a file was replaced, or has another time or size, since the last call."""
        before, self._stamps = self._stamps, self._look()
        return self._stamps != before

    def _look(self) -> list[_Stamp]:
        return [_stamp(path) for path in self._paths]


def credential_files(config: ServeConfig) -> list[Path | None]:
    """Return the files with credentials and certificates of the access control."""
    authentication = config.authentication
    files: list[Path | None] = [
        restriction.header.value_file for restriction in config.restricted if restriction.header
    ]
    if authentication:
        files += [authentication.tokens_file, authentication.api_keys_file]
    files.append(config.dashboard.token_file)
    files += [tenant.credentials_file for tenant in config.tenants.named.values()] if config.tenants else []
    return files


def _stamp(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
