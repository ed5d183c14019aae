"""HTTP server in front of the application: uvicorn's protocol with listeners of Tidegate's own."""

import asyncio
import json
import socket
import ssl
from typing import Final, Protocol

import uvicorn
from uvicorn.server import ServerState

from tidegate_proxy.servers.http.connection import HttpConnection, HttpConnections
from tidegate_proxy.servers.http.interface import Application, HttpLimits, Receive, Scope, Send
from tidegate_proxy.transport.client_bounds import ClientBounds, Served

_BACKLOG: Final = 1024
_POLL_S: Final = 0.01
_HEALTH: Final = b"/v2/health/"
_LAST_WORDS_S: Final = 1.0
"""How long it may take to tell clients that they will not be answered before their connections are cut."""


class HttpListener(Protocol):
    """Server of an application, whose connections are held by this process or by frontends."""

    port: int
    """Port number."""

    async def drain(self, until: float, serve_until: float = 0.0) -> None:
        """Let requests in flight end, until an instant of the loop's clock; accept new ones until `serve_until`."""
        ...

    async def stop(self) -> None:
        """Accept no more requests, and fail those in flight."""
        ...


class HttpServer:
    """HTTP server with its own listener. Use it only in one event loop."""

    def __init__(self, listener: asyncio.Server, state: ServerState, connections: HttpConnections) -> None:
        self._listener = listener
        self._state = state
        self._connections = connections
        self.port = int(listener.sockets[0].getsockname()[1])
        """Port number."""

    async def drain(self, until: float, serve_until: float = 0.0) -> None:
        """Let requests in flight end, until an instant of the loop's clock.

        Every response from now on closes its connection. Until `serve_until` open connections may send requests, and
        new ones are accepted; then no more are, and idle ones are closed.
        """
        loop = asyncio.get_running_loop()
        self._connections.retire()
        while len(self._connections) and loop.time() < min(serve_until, until):
            await asyncio.sleep(_POLL_S)
        self._listener.close()
        for connection in self._connections:
            connection.shutdown()
        while (len(self._connections) or self._state.tasks) and loop.time() < until:
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """Accept no more requests, fail those in flight, and close."""
        self._listener.close()
        for connection in self._connections:
            connection.shutdown()
        for task in self._state.tasks:
            task.cancel()
        give_up = asyncio.get_running_loop().time() + _LAST_WORDS_S
        while (len(self._connections) or self._state.tasks) and asyncio.get_running_loop().time() < give_up:
            await asyncio.sleep(_POLL_S)
        self._connections.close()
        for connection in self._connections:
            connection.abort()


async def start_server(
    application: Application,
    listener: socket.socket,
    *,
    limits: HttpLimits | None = None,
    tls: ssl.SSLContext | None = None,
    bounds: ClientBounds | None = None,
    served: Served = "http",
) -> HttpServer:
    """Listen on a bound socket. `served`: key under which its connections are counted in `bounds`.

    `listener`: the socket. `limits`, `bounds`: limits on clients; None: no limits.
    """
    limits = limits or HttpLimits()
    connections = HttpConnections(limits, bounds or ClientBounds(), served)
    config = uvicorn.Config(
        application,
        http=HttpConnection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        loop="none",  # the one that runs
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
    )
    config.load()
    state = ServerState()
    health_only = _health_only(application)
    listener.setblocking(False)
    server = await asyncio.get_running_loop().create_server(
        lambda: HttpConnection(config, state, connections, limits, health_only),
        sock=listener,
        ssl=tls,
        ssl_handshake_timeout=limits.head_s if tls else None,
        backlog=_BACKLOG,
    )
    return HttpServer(server, state, connections)


def _health_only(application: Application) -> Application:
    """The application for connections beyond the limit: how Tidegate is, can be asked even then."""
    body = json.dumps({"error": "too many connections (limits.max_connections)"}).encode()
    headers = [
        (b"content-type", b"text/plain"),
        (b"connection", b"close"),
        (b"content-length", str(len(body)).encode()),
    ]

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["raw_path"].startswith(_HEALTH):
            await application(scope, receive, send)
        else:
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    return answer
