"""gRPC as the proxy speaks it, to clients and to Tritons: bytes in, bytes out, callbacks.

There are two ways, `grpcio`: the completion queues of gRPC's own core, each polled by a thread; and `http2`: frames
from libnghttp2 in the event loop itself. They owe their users the same, and the same tests run on both;
docs/decisions/0030-http2-in-the-event-loop.md says why there are two.
"""

from collections.abc import Callable

from tidegate_proxy.bounds import Bounds
from tidegate_proxy.configuration.config import ServeConfig, TransportName
from tidegate_proxy.configuration.tritons import TritonTls
from tidegate_proxy.transport.awaited import CallFailed, Stream, ask
from tidegate_proxy.transport.interface import Call, Channel, Metadata, PendingCall, PendingStream, Server

__all__ = [
    "Call",
    "CallFailed",
    "Channel",
    "Metadata",
    "PendingCall",
    "PendingStream",
    "Server",
    "Stream",
    "ask",
    "new_channel",
    "new_server",
]


def new_server(config: ServeConfig, accept: Callable[[Call], None], bounds: Bounds) -> Server:
    """A server that gives every call to `accept`, and counts in `bounds` what clients hold. Made in the event loop."""
    reuse_port = config.listen.reuse_port
    if config.transport == "http2":
        from tidegate_proxy.transport import http2  # noqa: PLC0415 - only what is used is loaded

        return http2.Server(accept, config.limits, bounds, reuse_port=reuse_port)
    from tidegate_proxy.transport import grpcio  # noqa: PLC0415 - only what is used is loaded

    return grpcio.Server(accept, config.limits, bounds, reuse_port=reuse_port)


def new_channel(
    transport: TransportName, address: str, tls: TritonTls | None = None, keepalive_s: float | None = None
) -> Channel:
    """The way to a server at HOST:PORT. Made in the event loop. Raises TlsError."""
    if transport == "http2":
        from tidegate_proxy.transport import http2  # noqa: PLC0415 - only what is used is loaded

        return http2.Channel(address, tls, keepalive_s)
    from tidegate_proxy.transport import grpcio  # noqa: PLC0415 - only what is used is loaded

    return grpcio.Channel(address, tls, keepalive_s)
