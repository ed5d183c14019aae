"""A stream to a server, on gRPC's core."""

from collections.abc import Callable
from typing import Any, Final

from grpc import StatusCode
from grpc._cython import cygrpc

from tidegate_proxy.transport.interface import Ended

CODES: Final = {code.value[0]: code for code in StatusCode}
"""gRPC's status codes by their number."""


class PendingStream:
    """Any number of messages either way."""

    __slots__ = ("_done", "_is_closed", "_is_receiving", "_is_sending", "_status", "_then", "call")

    def __init__(self, then: Ended, done: Callable[["PendingStream"], None]) -> None:
        """`done` is called before `then`."""
        self.call: Any = None
        self._then = then
        self._done = done
        self._is_closed = False
        """Whether there are no more messages to be sent."""
        self._is_sending = False
        self._is_receiving = False
        self._status: tuple[StatusCode, str] | None = None

    def cancel(self) -> None:
        """Give it up: unless it has ended, its callback is called with CANCELLED, and the server is told."""
        self.call.cancel(cygrpc.StatusCode.cancelled, "given up by Tidegate")

    def send(self, message: bytes, then: Callable[[object], None]) -> None:
        """Send a message; `then` is called, with something of no meaning, when the next one may be sent."""

        def sent(event: Any) -> None:  # noqa: ANN401 - cygrpc is untyped
            self._is_sending = False
            if self._is_closed:
                self._say_closed()
            if event.success:
                then(event)

        self._is_sending = self.call.operate((cygrpc.SendMessageOperation(message, 0),), sent)

    def half_close(self) -> None:
        """Say that there are no more messages, once those that were sent are on their way."""
        if not self._is_closed:
            self._is_closed = True
            if not self._is_sending:
                self._say_closed()

    def receive(self, then: Callable[[bytes], None]) -> None:
        """Have `then` called with the next message, unless the stream ends before it. One at a time."""

        def received(event: Any) -> None:  # noqa: ANN401 - cygrpc is untyped
            self._is_receiving = False
            message: bytes | None = event.batch_operations[0].message()
            if message is not None:
                then(message)
            self._end()

        self._is_receiving = self.call.operate((cygrpc.ReceiveMessageOperation(0),), received)

    def ended(self, event: Any) -> None:  # noqa: ANN401 - cygrpc is untyped
        """Its status is there: of the core's, once all messages were asked for."""
        status = event.batch_operations[0]
        self._status = CODES[status.code()], status.details() or ""
        self._end()

    def _say_closed(self) -> None:
        self.call.operate((cygrpc.SendCloseFromClientOperation(0),), _ignore)

    def _end(self) -> None:
        if self._status and not self._is_receiving:
            status, self._status = self._status, None
            self._done(self)
            self._then(*status)


def _ignore(_event: object) -> None:
    pass
