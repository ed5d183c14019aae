"""Calls to a server: what they send, what they have got, how they end."""

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from grpc import StatusCode

from tidegate_proxy.base.faults import faults
from tidegate_proxy.transport.http2.inflation import MessageError
from tidegate_proxy.transport.http2.message import Assembler, whole
from tidegate_proxy.transport.http2.metadata import Header
from tidegate_proxy.transport.interface import Answered, Ended

LONGEST_ANSWER: Final = (1 << 31) - 1


class Line(Protocol):
    """What a call needs of the connection that it goes over."""

    def send(
        self, stream_id: int, message: bytes, then: Callable[[None], None] | None = None, *, is_last: bool = False
    ) -> None:
        """Send a message; `then` is called when the stream's reader is ready for more."""

    def half_close(self, stream_id: int) -> None:
        """Say that a stream's messages are all sent."""

    def acknowledge(self, stream_id: int, amount: int) -> None:
        """What came on a stream was taken."""

    def reset(self, stream_id: int) -> None:
        """Tell the server that nobody waits for a call."""


class PendingCall:
    """A call that was sent, or waits for a connection."""

    __slots__ = (
        *("_assembler", "_timer"),
        *("code", "connection", "details", "encoding", "headers", "is_over", "stream_id", "tries"),
    )

    def __init__(self, headers: Sequence[Header]) -> None:
        self.headers = headers
        self.connection: Line | None = None
        self.stream_id = 0
        self.tries = 0
        self.encoding = "identity"
        """What its server compresses messages with."""
        self.code: StatusCode | None = None
        """Its status, as soon as that has come."""
        self.details = ""
        self.is_over = False
        self._assembler: Assembler | None = None
        self._timer: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        """Give it up: unless it has ended, its callback is called with CANCELLED, and the server is told."""
        self._give_up(StatusCode.CANCELLED, "given up by Tidegate")

    def expires_in(self, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        """End it when its time is up."""
        self._timer = loop.call_later(seconds, self._give_up, StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def end(self, code: StatusCode, details: str) -> None:
        """It is over; only the first end counts."""
        if self.is_over:
            return
        self.is_over = True
        if self._timer:
            self._timer.cancel()
        try:
            self.ended(code, details)
        except Exception as error:  # one call's fault must not end the connection of all others
            faults.report("the end of a call", error)

    def fail(self, error: MessageError) -> None:
        """What its server sent cannot be taken."""
        self._give_up(error.code, error.details)

    @property
    @abstractmethod
    def may_be_sent_again(self) -> bool:
        """Whether what was sent to a server that did not look at it is still there."""

    @abstractmethod
    def begun(self) -> None:
        """Its headers are on their way on its connection: send what there is."""

    @abstractmethod
    def add(self, data: bytes) -> None:
        """Take in what its server sent. Raises MessageError."""

    @abstractmethod
    def status_came(self, code: StatusCode, details: str) -> None:
        """Its server has ended it."""

    @abstractmethod
    def ended(self, code: StatusCode, details: str) -> None:
        """Tell whoever made it, once."""

    def _give_up(self, code: StatusCode, details: str) -> None:
        if self.is_over:
            return
        if self.connection:
            self.connection.reset(self.stream_id)
        self.end(code, details)


class PendingUnary(PendingCall):
    """One message, one answer."""

    __slots__ = ("_answer", "_message", "_then")

    def __init__(self, headers: Sequence[Header], message: bytes, then: Answered) -> None:
        super().__init__(headers)
        self._message = message
        self._then = then
        self._answer: bytes | None = None

    @property
    def may_be_sent_again(self) -> bool:
        """Always: its message is kept."""
        return True

    def begun(self) -> None:
        """Its headers are on their way: send its message."""
        assert self.connection
        self.connection.send(self.stream_id, self._message, is_last=True)

    def add(self, data: bytes) -> None:
        """Take in a part of the answer. Raises MessageError."""
        if self.connection:
            self.connection.acknowledge(self.stream_id, len(data))
        if self._assembler is None:
            if self._answer is None and (message := whole(data, LONGEST_ANSWER)) is not None:
                self._answer = message
                return
            self._assembler = Assembler(self.encoding, LONGEST_ANSWER)
        self._assembler.add(data)
        if (message := self._assembler.take_inflated()) is not None:
            self._answer = message

    def status_came(self, code: StatusCode, details: str) -> None:
        """Its server has ended it."""
        if code is StatusCode.OK and self._answer is None:
            code, details = StatusCode.INTERNAL, "the server sent no message"
        self.end(code, details)

    def ended(self, code: StatusCode, details: str) -> None:
        """Hand the answer over, or the status."""
        self._message = b""
        self._then(self._answer if code is StatusCode.OK else None, code, details)


class PendingStream(PendingCall):
    """Any number of messages either way."""

    __slots__ = (
        *("_has_sent", "_is_closed", "_outbox", "_then"),
        *("_is_delivering", "_receiver", "_status", "_unacknowledged"),
    )

    def __init__(self, headers: Sequence[Header], then: Ended) -> None:
        super().__init__(headers)
        self._then = then
        self._outbox: deque[tuple[bytes, Callable[[object], None]]] = deque()
        """What is to be sent once there is a connection."""
        self._has_sent = False
        self._is_closed = False
        """Whether there are no more messages to be sent."""
        self._receiver: Callable[[bytes], None] | None = None
        self._is_delivering = False
        self._unacknowledged = 0
        """Bytes that came since the last message was taken: the server may not send as many again yet."""
        self._status: tuple[StatusCode, str] | None = None
        """What comes after the messages that were not taken yet."""

    @property
    def may_be_sent_again(self) -> bool:
        """As long as no message of it was sent."""
        return not self._has_sent

    def send(self, message: bytes, then: Callable[[object], None]) -> None:
        """Send a message; `then` is called, with something of no meaning, when the next one may be sent."""
        if self.is_over or self._is_closed:
            return
        self._outbox.append((message, then))
        self._write()

    def half_close(self) -> None:
        """Say that there are no more messages, once those that were sent are on their way."""
        if self.is_over or self._is_closed:
            return
        self._is_closed = True
        self._write()

    def receive(self, then: Callable[[bytes], None]) -> None:
        """Have `then` called with the next message, unless the stream ends before it. One at a time."""
        if self.is_over:
            return
        self._receiver = then
        self._acknowledge()
        try:
            self._deliver()
        except MessageError as error:
            self.fail(error)

    def begun(self) -> None:
        """Its headers are on their way: send what there is."""
        self._write()

    def add(self, data: bytes) -> None:
        """Take in what its server sent. Raises MessageError."""
        if self._assembler is None:
            self._assembler = Assembler(self.encoding, LONGEST_ANSWER)
        self._assembler.add(data)
        self._unacknowledged += len(data)
        if self._receiver:
            self._acknowledge()
        self._deliver()

    def status_came(self, code: StatusCode, details: str) -> None:
        """Its server has ended it: that counts once its messages are taken."""
        self._status = (code, details)
        self._deliver()

    def ended(self, code: StatusCode, details: str) -> None:
        """Forget what nobody waits for, and say how it ended."""
        self._outbox.clear()
        self._receiver = None
        self._acknowledge()
        self._then(code, details)

    def _write(self) -> None:
        connection = self.connection
        if connection is None:
            return
        while self._outbox:
            message, then = self._outbox.popleft()
            self._has_sent = True
            connection.send(self.stream_id, message, then)
        if self._is_closed:
            self._has_sent = True
            connection.half_close(self.stream_id)

    def _acknowledge(self) -> None:
        amount, self._unacknowledged = self._unacknowledged, 0
        if self.connection:
            self.connection.acknowledge(self.stream_id, amount)

    def _deliver(self) -> None:
        if self._is_delivering:
            return  # a receiver asks for more: no recursion
        self._is_delivering = True
        try:
            while self._assembler and (receiver := self._receiver):
                message = self._assembler.take_inflated()
                if message is None:
                    break
                self._receiver = None
                receiver(message)
        finally:
            self._is_delivering = False
        if self._status and not (self._assembler and self._assembler.has_message):
            self.end(*self._status)
