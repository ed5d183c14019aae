"""A gRPC call of a client, as a front passes it on to its home."""

from typing import Protocol

from tidegate_proxy.fronts import frames
from tidegate_proxy.fronts.frames import INLINE, STREAM, Kind
from tidegate_proxy.transport.http2.status import CODES
from tidegate_proxy.transport.interface import Call


class Line(Protocol):
    """What a call needs of the link to its home."""

    def send(self, kind: Kind, number: int, payload: bytes = b"") -> None:
        """Send a frame."""

    def begin(self, call: "RelayedCall") -> int:
        """A call begins: its number."""

    def over(self, number: int) -> None:
        """The call of this number has ended."""


class RelayedCall:
    """One call. What its home says of it comes to `take`."""

    __slots__ = ("_call", "_line", "_number")

    def __init__(self, line: Line, call: Call, body_timeout_s: float | None) -> None:
        self._line = line
        self._call = call
        self._number = 0
        call.on_gone = self._gone
        if call.method == STREAM:
            self._begin(None)
        else:
            call.receive(self._received_first, body_timeout_s)

    def take(self, kind: int, payload: bytes) -> None:
        """What the home says."""
        if kind == Kind.ANSWER:
            self._line.over(self._number)
            self._call.answer(payload)
        elif kind == Kind.END:
            self._line.over(self._number)
            self.fail(*frames.status_of(payload))
        elif kind == Kind.SEND:
            self._call.send(payload, self._sent)
        elif kind == Kind.WANT:
            self._call.receive(self._received)
        elif kind == Kind.RELEASE:
            self._call.release(frames.size_of(payload))

    def fail(self, code: int, details: str, reason: str) -> None:
        """End it with a status."""
        self._call.end(CODES[code], details, reason)

    def _begin(self, message: bytes | None) -> None:
        call = self._call
        self._number = self._line.begin(self)
        if not self._number:  # there is no home, and it was told so
            return
        inline = message if message is not None and len(message) <= INLINE else None
        opening = frames.call(call.method, call.peer(), call.metadata, call.remaining_s(), inline)
        self._line.send(Kind.CALL, self._number, opening)
        if message is not None and inline is None:
            self._line.send(Kind.MESSAGE, self._number, message)

    def _received_first(self, message: bytes | None) -> None:
        """The first message; None: there is none."""
        self._begin(message)
        if message is None and self._number:
            self._line.send(Kind.CLOSED, self._number)

    def _received(self, message: bytes | None) -> None:
        """A further message; None: there is none."""
        if message is None:
            self._line.send(Kind.CLOSED, self._number)
        else:
            self._line.send(Kind.MESSAGE, self._number, message)

    def _sent(self, _nothing: object) -> None:
        self._line.send(Kind.TAKEN, self._number)

    def _gone(self) -> None:
        if self._number:
            self._line.over(self._number)
            self._line.send(Kind.GONE, self._number)
