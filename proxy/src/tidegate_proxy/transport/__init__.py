"""gRPC as the proxy speaks it, to clients and to Tritons: bytes in, bytes out, callbacks.

Frames are libnghttp2's, in the event loop itself (`http2`); decision 30 says why.
"""

from tidegate_proxy.transport.awaited import CallFailed, Stream, ask
from tidegate_proxy.transport.http2 import Channel, PendingCall, PendingStream
from tidegate_proxy.transport.http2 import Server as Http2Server
from tidegate_proxy.transport.interface import Call, Metadata, Server

__all__ = [
    "Call",
    "CallFailed",
    "Channel",
    "Http2Server",
    "Metadata",
    "PendingCall",
    "PendingStream",
    "Server",
    "Stream",
    "ask",
]
