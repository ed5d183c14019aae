"""Limits on the memory that clients hold in total, and how often a limit applied."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal, Protocol, TypeVar

from tidegate_proxy.configuration.settings import SettingsHolder

Served = Literal["grpc", "http", "metrics"]
"""Key by which connections are counted."""
TOO_MUCH: Final = "too many bytes of requests are in flight (limits.max_bytes_in_flight)"


class TooMuchInFlight(Exception):
    """Error: the bytes in flight have reached their limit, so the request is rejected."""


class ClientBounds:
    """Counters of bytes received from clients and of bytes that they have not read.

    May be called from any thread, as large bodies are decompressed in threads.
    """

    def __init__(self, in_force: SettingsHolder | None = None) -> None:
        """Create the client bounds. `in_force`: the limits; None: unlimited."""
        self._in_force = in_force or SettingsHolder()
        self.in_flight_bytes = 0
        self._in_flight_of: dict[str, int] = {}
        """The same by whose they are."""
        self.unread_bytes = 0
        self.ended: Counter[tuple[Served, str]] = Counter()
        """Number of times that a limit was exceeded, by protocol and the limit's name in the configuration."""
        self.connections: dict[Served, int] = {}
        """Number of open connections, for the protocols that report it."""
        self._lock = threading.Lock()

    @property
    def max_response_buffer_bytes(self) -> int:
        """Limit of all unread responses in bytes."""
        return self._in_force.settings.max_response_buffer_bytes

    @property
    def max_response_buffer_bytes_per_connection(self) -> int:
        """Limit of one connection's unread responses in bytes, if there is more than one response."""
        return self._in_force.settings.max_response_buffer_bytes_per_connection

    def take(self, size: int, owner: str) -> bool:
        """Count received bytes of a request; return False, and count nothing, if a limit is reached.

        A client may hold as many as it leaves to others: half of all if it is alone, otherwise an equal part of that
        and of the rest (the dynamic threshold of Choudhury and Hahne, 1998).
        """
        if not size:
            return True
        with self._lock:
            before = self._in_flight_of.get(owner, 0)
            if before + size > self._in_force.settings.max_in_flight_bytes - self.in_flight_bytes:
                return False
            self._in_flight_of[owner] = before + size
            self.in_flight_bytes += size
        return True

    def give_back(self, size: int, owner: str) -> None:
        """Release received bytes."""
        if not size:
            return
        with self._lock:
            self.in_flight_bytes -= size
            left = self._in_flight_of.pop(owner, 0) - size
            if left > 0:  # connections come and go
                self._in_flight_of[owner] = left

    def unread(self, size: int) -> None:
        """Count bytes of responses that wait for their readers; negative: bytes that were read."""
        with self._lock:
            self.unread_bytes += size

    def count(self, protocol: Served, limit: str) -> None:
        """Count an application of a limit, by its name in the configuration."""
        with self._lock:
            self.ended[protocol, limit] += 1


class _Connection(Protocol):
    """A connection."""

    @property
    def host(self) -> str:
        """Host that the connection comes from."""


AnyConnection = TypeVar("AnyConnection", bound=_Connection)


def makes_room(
    candidates: Callable[[], Iterable[AnyConnection]], hosts: Mapping[str, int], newcomer: str
) -> Iterator[AnyConnection]:
    """Return the connections that may be closed to make room for another.

    They belong to the host with the most connections; if none of its connections is a candidate, to hosts with no fewer
    than the new one's. `newcomer`: host of the new connection.
    """
    for least in (max(hosts.values()), hosts.get(newcomer, 0) + 1):
        found = (connection for connection in candidates() if hosts[connection.host] >= least)
        if (first := next(found, None)) is not None:
            yield first
            yield from found
            return
