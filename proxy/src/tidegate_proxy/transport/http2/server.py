"""The serving side: listens, and gives every call of a client to `accept`, in the event loop."""

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Callable
from errno import EADDRINUSE
from typing import Any, Final

from tidegate_proxy.configuration.addresses import host_of, port_of
from tidegate_proxy.configuration.config import ServerTls
from tidegate_proxy.configuration.limits import LimitsConfig
from tidegate_proxy.transport.client_bounds import Bounds, makes_room
from tidegate_proxy.transport.http2.call import Call
from tidegate_proxy.transport.http2.connection import ALPN
from tidegate_proxy.transport.http2.server_connection import HEARD_S, ServerConnection
from tidegate_proxy.transport.tls import server_context

SWEEP_S: Final = 0.25
"""How often connections are looked at that take too long."""
POLL_S: Final = 0.01
BACKLOG: Final = 1024


class Server:
    """Listens, and gives every call to `accept`. All in the event loop's thread."""

    def __init__(
        self, accept: Callable[[Call], None], limits: LimitsConfig, bounds: Bounds, *, reuse_port: bool = False
    ) -> None:
        """`bounds` counts what is received and sent. `reuse_port`: others may listen on the same port."""
        self.accept = accept
        self.limits = limits
        self.bounds = bounds
        self._reuse_port = reuse_port
        self._loop = asyncio.get_running_loop()
        self._connections: dict[ServerConnection, float] = {}
        """Each with the share of `max_connection_age_s` that it gets, so that not all of them end at once."""
        self._listener: asyncio.Server | None = None
        self._sweeping: asyncio.TimerHandle | None = None
        self._stopping = False

    async def listen(self, address: str, tls: ServerTls | None = None) -> int:
        """Bind HOST:PORT and serve; the port. Raises OSError when it cannot be bound, and TlsError."""
        try:
            await self._serve(
                tls, host=host_of(address).strip("[]"), port=port_of(address), reuse_port=self._reuse_port
            )
        except OSError as error:
            why = "is the port taken?" if error.errno == EADDRINUSE else error.strerror or error
            raise OSError(f"cannot listen on {address}: {why}") from error
        assert self._listener is not None, "it was just made"
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def listen_on(self, port: socket.socket, tls: ServerTls | None = None) -> None:
        """Serve on a socket that is bound; others may listen on it, too. Raises OSError and TlsError."""
        await self._serve(tls, sock=port)

    async def _serve(self, tls: ServerTls | None, **where: Any) -> None:  # noqa: ANN401 - as create_server has it
        context = server_context(tls, ALPN) if tls else None
        self._listener = await self._loop.create_server(
            lambda: ServerConnection(self),
            ssl=context,
            ssl_handshake_timeout=self.limits.head_timeout_s if context else None,
            backlog=BACKLOG,
            **where,
        )
        self._sweeping = self._loop.call_later(SWEEP_S, self._sweep)

    @property
    def is_listening(self) -> bool:
        """Whether new clients come in."""
        return self._listener is not None and self._listener.is_serving()

    def close_port(self) -> None:
        """Let no new clients in; those that are connected are served."""
        if self._listener:
            self._listener.close()

    async def retire(self, within_s: float) -> None:
        """Tell clients to go elsewhere; return when they had time to hear it. Whoever stays, or comes, is served."""
        leaving = list(self._connections)
        for connection in leaving:
            connection.retire()
        until_s = self._loop.time() + min(HEARD_S, within_s)
        while any(one in self._connections for one in leaving) and self._loop.time() < until_s:
            await asyncio.sleep(POLL_S)

    async def stop(self, grace_s: float) -> bool:
        """Take no more calls, let those under way end, cut off what has not ended then; whether all had."""
        self._stopping = True
        if self._listener:
            self._listener.close()
        for connection in self._connections:
            connection.shut_down()
        until_s = self._loop.time() + grace_s
        while self.open_calls and self._loop.time() < until_s:
            await asyncio.sleep(POLL_S)
        drained = not self.open_calls
        for connection in list(self._connections):
            connection.flush()
            if not drained:
                connection.abort("Tidegate is shutting down")
            elif connection.transport:
                connection.transport.close()
        if self._sweeping:
            self._sweeping.cancel()
        return drained

    @property
    def open_calls(self) -> int:
        """Calls that have not ended."""
        return sum(connection.open_calls for connection in self._connections)

    # For its connections -----------------------------------------------------------------------------------------

    def admits(self, connection: ServerConnection) -> bool:
        """Whether there is room for one more connection, if need be instead of one that is idle; it is counted."""
        if self._stopping:
            return False
        if len(self._connections) >= self.limits.max_connections:
            hosts = Counter(other.host for other in self._connections)
            idle = [other for other in self._connections if not other.is_busy]
            replaceable = makes_room(lambda: idle, hosts, connection.host)
            ended = min(replaceable, key=lambda other: (other.has_asked, other.idle_since_s), default=None)
            if ended is None:
                self.bounds.count("grpc", "max_connections")
                return False
            ended.end_for("max_connections")
        self._connections[connection] = random.uniform(0.9, 1.1)
        self.bounds.connections["grpc"] = len(self._connections)
        return True

    def left(self, connection: ServerConnection) -> None:
        """A connection is no more."""
        self._connections.pop(connection, None)
        self.bounds.connections["grpc"] = len(self._connections)

    def age_s(self, connection: ServerConnection) -> float:
        """How old it may get."""
        return (self.limits.max_connection_age_s or 0.0) * self._connections.get(connection, 1.0)

    def end_largest(self) -> None:
        """All connections together have too much that is not read."""
        max(self._connections, key=lambda connection: connection.unread).end_for("max_unread_bytes")

    def _sweep(self) -> None:
        for connection in list(self._connections):
            connection.sweep()
        self._sweeping = self._loop.call_later(SWEEP_S, self._sweep)
