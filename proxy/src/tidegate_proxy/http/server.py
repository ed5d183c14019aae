"""The HTTP server in front of the application: uvicorn, with Triton's manners."""

import asyncio
import logging
import socket
import ssl
from typing import Final

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tidegate_proxy.http.interface import Application, Limits

log = logging.getLogger(__name__)

_FOREVER_S: Final = 10 * 365 * 24 * 3600
"""Triton never closes a connection because it is idle, and clients that keep them in pools rely on it."""
_BACKLOG: Final = 1024
_OFFERS: Final = frozenset({b"connection", b"upgrade", b"http2-settings"})


class HttpServer:
    """A listening server; lives in one event loop."""

    def __init__(self, server: uvicorn.Server, listener: socket.socket) -> None:
        self._server = server
        self._listener = listener

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    async def stop(self) -> None:
        """Take no more requests, give those under way the grace to end, and close."""
        await self._server.shutdown(sockets=[self._listener])
        await asyncio.gather(*self._server.server_state.tasks, return_exceptions=True)


async def start_server(
    application: Application,
    host: str,
    port: int,
    *,
    limits: Limits | None = None,
    tls: ssl.SSLContext | None = None,
    grace_s: int = 5,
) -> HttpServer:
    """Listen; a port of 0 is a free one. Raises OSError when the address cannot be bound.

    `grace_s`: how long `stop` waits for requests under way, in seconds.
    """
    listener = _listen(host, port)
    config = uvicorn.Config(
        application,
        http=_protocol(limits or Limits()),
        ws="none",
        lifespan="off",
        loop="none",  # the one that runs
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=_FOREVER_S,
        timeout_graceful_shutdown=grace_s,
    )
    config.load()
    config.ssl = tls
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    # Not `serve`: that takes the signals of the process, which belong to others, and ends by itself.
    await server.startup(sockets=[listener])
    return HttpServer(server, listener)


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


def _protocol(limits: Limits) -> type[HttpToolsProtocol]:
    class Protocol(HttpToolsProtocol):
        """One connection: its heads have a limit, and what is no HTTP ends it without a word, as with Triton."""

        _head_bytes = 0
        _in_head = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self._take_both_lengths()
            super().connection_made(transport)

        def _take_both_lengths(self) -> None:
            """Triton takes a request with Content-Length and chunks: the chunks count, and it is the last one here."""
            self.parser.set_dangerous_leniencies(lenient_chunked_length=True)

        def data_received(self, data: bytes) -> None:
            self._unset_keepalive_if_required()
            size = len(data)
            while data and not self.transport.is_closing():
                try:
                    self.parser.feed_data(data)
                    break
                except httptools.HttpParserUpgrade as offer:
                    data = self._declined() + data[offer.args[0] :]
                except httptools.HttpParserError:
                    self.transport.close()
                    return
            # The parser collects an unfinished head, so that is bounded by the limit and one read.
            self._head_bytes = self._head_bytes + size if self._in_head else 0
            if self._head_bytes > limits.head_bytes:
                log.warning("a client sent more than %d bytes of headers", limits.head_bytes)
                self.transport.close()

        def _declined(self) -> bytes:
            """The head of a request that offers another protocol, without the offer; the parser starts anew with it.

            Some clients offer HTTP/2 with every first request. The parser would take the request's body for the
            beginning of the other protocol. A tunnel is refused as Triton does it, by closing.
            """
            method, version = self.parser.get_method(), self.parser.get_http_version()
            self.parser = httptools.HttpRequestParser(self)
            self._take_both_lengths()
            if method == b"CONNECT":
                self.transport.close()
                return b""
            lines = [b"%b %b HTTP/%b" % (method, self.url, version.encode())]
            lines += [b"%b: %b" % header for header in self.headers if header[0] not in _OFFERS]
            if any(name == b"connection" and b"close" in value.lower() for name, value in self.headers):
                lines.append(b"connection: close")
            return b"\r\n".join([*lines, b"", b""])

        def on_message_begin(self) -> None:
            self._in_head = True
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._in_head = False
            if self.parser.should_upgrade():
                return
            if any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in self.headers):
                self.transport.close()
                return
            super().on_headers_complete()
            if {b"content-length", b"transfer-encoding"} <= {name for name, _ in self.headers}:
                self.cycle.keep_alive = False  # RFC 9112, section 6.1: whoever took the length at its word is cut off
            if b"#" in self.url:  # no fragment in a request, and so to Triton a part of the path like any other
                self.scope["raw_path"], _, self.scope["query_string"] = self.url.partition(b"?")

        def on_message_complete(self) -> None:
            if not self.parser.should_upgrade():
                super().on_message_complete()

    return Protocol
