"""gRPC over HTTP/2 in the event loop; frames are libnghttp2's (package `ngh2`).

One thread does it all, so nothing is handed from thread to thread: that was most of what a hop cost.

    server.py              listens
    server_connection.py   a client's connection: its calls, and what it may cost
    call.py                one call of a client
    opening.py             what the headers of a call say
    channel.py             the calling side: a connection to a Triton, made again when it breaks
    client_connection.py   that connection: its calls
    client_call.py         one call to a Triton, unary or a stream
    connection.py          what both sides share: reading, writing, flow control, keepalive
    header_blocks.py       a Triton's long headers, cut off before libnghttp2 ends the connection for them
    message.py             gRPC's five bytes before every message, size limits
    inflation.py           messages that come compressed
    metadata.py            headers as metadata and back: `-bin`, percent-encoding, time limits
    blanks.py              values of headers that end with a blank, as some of Triton's messages do
    status.py              what HTTP and HTTP/2 errors mean in gRPC
"""

import logging

from tidegate_proxy.transport.http2.blanks import allow_blanks
from tidegate_proxy.transport.http2.channel import Channel
from tidegate_proxy.transport.http2.client_call import PendingCall, PendingStream
from tidegate_proxy.transport.http2.server import Server

__all__ = ["Channel", "PendingCall", "PendingStream", "Server"]

if not allow_blanks():
    logging.getLogger(__name__).warning(
        "calls whose metadata or messages of errors begin or end with a blank will fail: this build of ngh2 does not "
        "allow for them; install one of the versions that constraints.txt names"
    )
