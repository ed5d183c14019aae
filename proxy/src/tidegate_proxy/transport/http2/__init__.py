"""gRPC over HTTP/2 in the event loop; frames are libnghttp2's (package `ngh2`).

One thread does it all, so nothing is handed from thread to thread: that was most of what a hop cost.

    server.py       listens; connections of clients, their calls
    channel.py      the calling side: one connection to a Triton, made again when it breaks
    connection.py   what both sides share: reading, writing, flow control, keepalive
    message.py      gRPC's five bytes before every message, compression, size limits
    metadata.py     headers as metadata and back: `-bin`, percent-encoding, time limits
    status.py       what HTTP and HTTP/2 errors mean in gRPC
"""

from tidegate_proxy.transport.http2.channel import Channel
from tidegate_proxy.transport.http2.server import Server

__all__ = ["Channel", "Server"]
