"""gRPC over HTTP/2 in the event loop; frames are libnghttp2's (package `ngh2`).

One thread does it all, so nothing is handed from thread to thread: that was most of what a hop cost.

    server.py       the serving side: listener, a client's connection and what it may cost, one call
    client.py       the calling side: channel to a Triton, its connection, one call, unary or a stream
    connection.py   what both sides share: reading, writing, flow control, keepalive
    headers.py      headers as metadata and back, statuses; long ones are cut off before libnghttp2 ends the connection
    message.py      gRPC's five bytes before every message, size limits, compression
    header_whitespace.py       values of headers that end with a blank, as some of Triton's messages do
"""

import logging

from tidegate_proxy.transport.http2.client import Channel, PendingCall, PendingStream
from tidegate_proxy.transport.http2.header_whitespace import allow_blanks
from tidegate_proxy.transport.http2.server import Http2Server

__all__ = ["Channel", "Http2Server", "PendingCall", "PendingStream"]

if not allow_blanks():
    logging.getLogger(__name__).warning(
        "calls whose metadata or messages of errors begin or end with a blank will fail: this build of ngh2 does not "
        "allow for them; install one of the versions that constraints.txt names"
    )
