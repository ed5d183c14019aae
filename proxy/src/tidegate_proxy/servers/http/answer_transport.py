"""The transport of one HTTP answer, where its bytes are not simply those that the server library writes."""

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_MAX_EARLY_BYTES: Final = len(b"HTTP/1.1 ")
_FIRST_PAUSE_S: Final = 0.02
"""Between the first two bytes that are sent early; each pause is twice the one before."""


class AnswerTransport:
    """Speaks the version of HTTP in which the client asked, and may send bytes before there is an answer."""

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        self._transport = transport
        self._cycle = cycle
        self._version = b"HTTP/%b " % cycle.scope["http_version"].encode()
        self._in_head = not cycle.response_started
        self._early_bytes = 0

    def send_early(self) -> float:
        """Send one byte with which whatever comes next can begin; seconds until the next one, 0: there is none.

        A head begins with the version, the length of a chunk may begin with zeros (RFC 9112, section 7.1).
        """
        if self._early_bytes == _MAX_EARLY_BYTES or not (self._in_head or self._cycle.chunked_encoding):
            return 0.0
        self._transport.write(self._version[self._early_bytes :][:1] if self._in_head else b"0")
        self._early_bytes += 1
        return _FIRST_PAUSE_S * 2.0 ** (self._early_bytes - 1)

    def write(self, data: bytes) -> None:
        """Write on; what comes first is the head."""
        if self._in_head:
            self._in_head = False
            line, _, rest = data.partition(b"\r\n")
            if self._version == b"HTTP/1.0 " and self._cycle.keep_alive:
                rest = b"connection: keep-alive\r\n" + rest
            data = (self._version + line.partition(b" ")[2])[self._early_bytes :] + b"\r\n" + rest
        self._transport.write(data)

    def close(self) -> None:
        """Close the connection behind what was written."""
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._transport.is_closing()


def transport_of(cycle: RequestResponseCycle) -> AnswerTransport:
    """The answer's own transport, from now on in place of the library's."""
    if not isinstance(cycle.transport, AnswerTransport):
        cycle.transport = AnswerTransport(cycle.transport, cycle)  # type: ignore[assignment]
    return cycle.transport  # type: ignore[return-value]
