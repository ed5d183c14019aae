"""gRPC transport to clients and to Tritons: bytes in, bytes out, callbacks.

Frames are handled by libnghttp2 in the event loop itself (`http2`); decision 30 gives the reasons.
"""

from tidegate_proxy.transport.async_calls import AsyncStream, CallFailed, ask
from tidegate_proxy.transport.http2 import Channel, Http2Server, PendingCall, PendingStream
from tidegate_proxy.transport.http2.server_call import RpcCall
from tidegate_proxy.transport.interface import Metadata, RpcServer

__all__ = [
    "AsyncStream",
    "CallFailed",
    "Channel",
    "Http2Server",
    "Metadata",
    "PendingCall",
    "PendingStream",
    "RpcCall",
    "RpcServer",
    "ask",
]
