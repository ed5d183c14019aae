"""gRPC as the proxy speaks it, to clients and to Tritons: bytes in, bytes out, callbacks.

Frames are libnghttp2's, in the event loop itself (`http2`); decision 30 says why.
"""

from tidegate_proxy.transport.async_calls import AsyncStream, CallFailed, ask
from tidegate_proxy.transport.http2 import Channel, Http2Server, PendingCall, PendingStream
from tidegate_proxy.transport.interface import Metadata, RpcCall, RpcServer

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
