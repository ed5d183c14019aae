"""The connections of one HTTP server, by what clients owe: who takes too long is cut off, who has most makes room."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Final, Protocol

from tidegate_proxy.servers.http.interface import HttpLimits
from tidegate_proxy.transport.client_bounds import Bounds, Served, makes_room

SWEEP_S: Final = 0.25
RESERVE: Final = 16
"""Connections beyond the limit that are let in, to ask for health and nothing else, where none can make room."""
PROGRESS_BYTES: Final = 1 << 16
"""A reader that takes so much of its answer is not stuck."""


class Connection(Protocol):
    """One connection, as far as it can be made to end."""

    @property
    def host(self) -> str:
        """The address that it comes from, without the port."""

    @property
    def is_paused(self) -> bool:
        """Whether it is Tidegate that does not read at present."""

    @property
    def unread_bytes(self) -> int:
        """Written for the client, and not taken."""

    def retire(self) -> None:
        """End it with its next answer."""

    def shutdown(self) -> None:
        """End it when what is under way is answered; at once if nothing is."""

    def turn_away(self) -> None:
        """End it; a client that is in the middle of a request is told so."""

    def close_after_answers(self) -> bool:
        """Drop further input, and close behind the answers to complete requests. False: there are none to answer."""

    def abort(self) -> None:
        """End it without a word, whatever it holds."""


class Connections:
    """Lives in one event loop. In each of its books the connection that has been in it longest comes first."""

    def __init__(self, limits: HttpLimits, bounds: Bounds, served: Served) -> None:
        self._limits = limits
        self._bounds = bounds
        self._served: Served = served
        self._held: Counter[Connection] = Counter()
        """The bytes that count as in flight, beside bodies: of requests and heads, by connection."""
        self._open: dict[Connection, None] = {}
        self._hosts: Counter[str] = Counter()
        """How many of those come from where."""
        self._new: dict[Connection, float] = {}
        """The connections that have asked for nothing, and since when, by the loop's clock; as below."""
        self._idle: dict[Connection, float] = {}
        self._heads: dict[Connection, float] = {}
        self._bodies: dict[Connection, float] = {}
        self._unread: dict[Connection, tuple[float, int]] = {}
        """And how much it had not taken then."""
        self.retiring = False
        """Whether the server is about to stop: every connection ends with its next answer."""
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(SWEEP_S, self._sweep)
        bounds.connections[served] = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._open))

    def retire(self) -> None:
        """Have every connection end with its next answer: the server is about to stop."""
        self.retiring = True
        for connection in self:
            connection.retire()

    def close(self) -> None:
        """End nothing any more."""
        self._timer.cancel()

    def opened(self, connection: Connection) -> bool:
        """One more. Whether it may ask for whatever it likes; if not, for health only, or it was ended at once."""
        if len(self._open) >= self._limits.connections:
            self._bounds.count(self._served, "max_connections")
            while len(self._open) >= self._limits.connections and self._make_room(connection.host):
                pass
        full = len(self._open) >= self._limits.connections
        self._open[connection] = None
        self._hosts[connection.host] += 1
        self._new[connection] = self._loop.time()
        self._bounds.connections[self._served] = len(self._open)
        if len(self._open) > self._limits.connections + RESERVE:
            self._end(connection)
        return not full

    def take(self, connection: Connection, size: int) -> bool:
        """Count so many bytes more that are held for it. False, and nothing is counted, where they are too many."""
        if not self._bounds.take(size, connection.host):
            self._bounds.count(self._served, "max_bytes_in_flight")
            return False
        self._held[connection] += size
        return True

    def give_back(self, connection: Connection, size: int) -> None:
        """So many of them are not held any more."""
        size = min(size, self._held[connection])
        self._held[connection] -= size
        self._bounds.give_back(size, connection.host)

    def closed(self, connection: Connection) -> None:
        """It is no more."""
        self._bounds.give_back(self._held.pop(connection, 0), connection.host)
        if connection in self._open:
            del self._open[connection]
            self._hosts[connection.host] -= 1
            if not self._hosts[connection.host]:
                del self._hosts[connection.host]
        self._remove_from_books(connection)
        self.all_read(connection)
        self._bounds.connections[self._served] = len(self._open)

    def _remove_from_books(self, connection: Connection) -> None:
        for book in (self._new, self._idle, self._heads, self._bodies):
            book.pop(connection, None)

    def awaits_head(self, connection: Connection) -> None:
        """A request has begun."""
        self._new.pop(connection, None)
        self._idle.pop(connection, None)
        self._bodies.pop(connection, None)
        self._heads.setdefault(connection, self._loop.time())  # it may be parsed again

    def awaits_body(self, connection: Connection) -> None:
        """Its head is there."""
        self._heads.pop(connection, None)
        self._bodies[connection] = self._loop.time()

    def owes_nothing(self, connection: Connection) -> None:
        """The whole request is there."""
        self._heads.pop(connection, None)
        self._bodies.pop(connection, None)

    def is_idle(self, connection: Connection) -> None:
        """It is answered, and has not begun another request."""
        if connection in self._open and connection not in self._heads and connection not in self._bodies:
            self._idle[connection] = self._loop.time()

    def has_unread(self, connection: Connection) -> None:
        """More was written than the client takes at once."""
        size = connection.unread_bytes
        self.all_read(connection)
        self._unread[connection] = (self._loop.time(), size)
        self._bounds.unread(size)
        self._make_memory()

    def all_read(self, connection: Connection) -> None:
        """The client has taken it, or will not any more."""
        if before := self._unread.pop(connection, None):
            self._bounds.unread(-before[1])

    def _sweep(self) -> None:
        self._timer = self._loop.call_later(SWEEP_S, self._sweep)
        limits, now = self._limits, self._loop.time()
        for book, limit_s, name in (
            (self._heads, limits.head_s, "head_timeout_s"),
            (self._bodies, limits.body_s, "body_timeout_s"),
            (self._new, limits.idle_s, "idle_timeout_s"),
            (self._idle, limits.idle_s, "idle_timeout_s"),
        ):
            self._end_overdue(book, now, limit_s, name)
        for connection, (since, size) in list(self._unread.items()):
            left = connection.unread_bytes
            if left <= size - PROGRESS_BYTES:
                self.has_unread(connection)
            elif limits.send_s is not None and now - since > limits.send_s:
                self._end(connection, "send_timeout_s")
        self._make_memory()

    def _end_overdue(self, book: dict[Connection, float], now: float, limit_s: float | None, name: str) -> None:
        if limit_s is None:
            return
        while book:
            connection, since = next(iter(book.items()))
            if now - since <= limit_s:
                return
            if connection.is_paused:  # it is we who do not read
                del book[connection]
                book[connection] = now
            else:
                self._end(connection, name, told=True)

    def _make_room(self, host: str) -> bool:
        """End the slowest of those that may make room. False where none owes anything: all wait for Tidegate."""
        slowest_first = (self._heads, self._new, self._idle, self._bodies)
        ended = next(makes_room(lambda: chain(*slowest_first), self._hosts, host), None)
        if ended is not None:
            self._end(ended)
        return ended is not None

    def _make_memory(self) -> None:
        """End those that have taken least of what was written for them, while all together hold too much."""
        while self._unread and self._bounds.unread_bytes > self._bounds.max_unread_bytes:
            self._end(max(self._unread, key=lambda connection: self._unread[connection][1]), "max_unread_bytes")

    def _end(self, connection: Connection, limit: str = "", *, told: bool = False) -> None:
        if limit:
            self._bounds.count(self._served, limit)
        if told and connection.close_after_answers():
            self._remove_from_books(connection)
            return
        self.closed(connection)
        if told:
            connection.turn_away()
        else:
            connection.abort()
