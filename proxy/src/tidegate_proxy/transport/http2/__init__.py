"""gRPC over HTTP/2 in the event loop; frames are handled by libnghttp2 (package `ngh2`).

Everything runs in one thread: handing data between threads was most of the cost of a hop.

    server.py       server side: listener, a client's connection and its limits
    server_call.py  one call of a client
    client.py       client side: channel to a Triton, its connection, one call, unary or a stream
    connection.py   common part: reading, writing, flow control, keepalive
    headers.py      headers as metadata and back, statuses; long ones are truncated for libnghttp2
    message.py      gRPC's five-byte prefix of messages, size limits, compression
    header_whitespace.py       header values that end with a blank, as some of Triton's messages do
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
