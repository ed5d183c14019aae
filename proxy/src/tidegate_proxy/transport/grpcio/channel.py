"""The calling side: a thread per channel takes events from its queue, the event loop runs the callbacks of calls."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import grpc
from grpc._cython import cygrpc

from tidegate_proxy.access.tls import channel_credentials, channel_options
from tidegate_proxy.configuration.tritons import TritonTls
from tidegate_proxy.transport.grpcio.handover import HandOver
from tidegate_proxy.transport.grpcio.options import CHANNEL_OPTIONS
from tidegate_proxy.transport.grpcio.stream import CODES, PendingStream
from tidegate_proxy.transport.interface import Answered, Ended, Metadata

SHUTTING_DOWN: Final = "Tidegate is shutting down"


class PendingCall:
    """A call that was sent."""

    __slots__ = ("call",)

    def __init__(self) -> None:
        self.call: Any = None

    def cancel(self) -> None:
        """Give it up: unless it has ended, `then` is called with CANCELLED, and the server is told."""
        self.call.cancel(cygrpc.StatusCode.cancelled, "given up by Tidegate")


class Channel:
    """Calls to one server. Methods and callbacks are for the event loop that it was made in."""

    def __init__(
        self,
        address: str,
        tls: TritonTls | None = None,
        keepalive_s: float | None = None,
    ) -> None:
        """`keepalive_s`: as the configuration's. Raises TlsError."""
        options = [*CHANNEL_OPTIONS, *(channel_options(tls) if tls else ())]
        if keepalive_s is not None:
            options.append(("grpc.keepalive_time_ms", round(keepalive_s * 1000)))
        credentials = channel_credentials(tls)._credentials if tls else None
        self._channel = cygrpc.Channel(address.encode(), tuple(options), credentials)
        self._pending: set[PendingCall | PendingStream] = set()
        self._ended = asyncio.Event()
        """One of them has ended."""
        self._hand_over = HandOver()
        self._thread = threading.Thread(target=self._spin, name=f"grpc to {address}", daemon=True)
        self._thread.start()

    def unary(
        self, method: str, message: bytes, then: Answered, metadata: Metadata = (), timeout_s: float | None = None
    ) -> PendingCall:
        """Send a message; `then` is called when the call is over, exactly once."""

        def ended(event: Any) -> None:  # noqa: ANN401 - cygrpc is untyped
            self._forget(call)
            _, _, _, _, received, status = event.batch_operations
            code = CODES[status.code()]
            then(received.message() if code is grpc.StatusCode.OK else None, code, status.details() or "")

        operations = (
            cygrpc.SendInitialMetadataOperation(metadata, 0),
            cygrpc.SendMessageOperation(message, 0),
            cygrpc.SendCloseFromClientOperation(0),
            cygrpc.ReceiveInitialMetadataOperation(0),
            cygrpc.ReceiveMessageOperation(0),
            cygrpc.ReceiveStatusOnClientOperation(0),
        )
        call = PendingCall()
        call.call = self._begun(call, method, metadata, timeout_s, (operations, ended))
        return call

    def stream(
        self, method: str, then: Ended, metadata: Metadata = (), timeout_s: float | None = None
    ) -> PendingStream:
        """Begin a stream; `then` is called when it is over, exactly once, and not before this returns.

        A status of the server's comes after the messages that it sent, once they were received; nothing else waits.
        """
        call = PendingStream(then, self._forget)
        head = (cygrpc.SendInitialMetadataOperation(metadata, 0), cygrpc.ReceiveInitialMetadataOperation(0))
        status = ((cygrpc.ReceiveStatusOnClientOperation(0),), call.ended)
        call.call = self._begun(call, method, metadata, timeout_s, status, (head, _ignore))
        return call

    def push(self) -> None:
        """Nothing is held back here: gRPC's core sends in threads of its own."""

    def _forget(self, call: PendingCall | PendingStream) -> None:
        self._pending.discard(call)
        self._ended.set()

    def _begun(
        self,
        call: PendingCall | PendingStream,
        method: str,
        metadata: Metadata,
        timeout_s: float | None,
        *operations: tuple[tuple[Any, ...], Callable[[Any], None]],
    ) -> Any:  # noqa: ANN401 - cygrpc is untyped
        deadline_s = None if timeout_s is None else time.time() + timeout_s
        self._pending.add(call)
        return self._channel.integrated_call(0, method.encode(), None, deadline_s, metadata, None, operations, None)

    async def close(self) -> None:
        """End every call under way with CANCELLED, and the thread."""
        while self._pending:
            self._ended.clear()
            for call in self._pending:
                call.cancel()
            await self._ended.wait()
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        last = (cygrpc.SendInitialMetadataOperation((), 0), cygrpc.ReceiveStatusOnClientOperation(0))
        call = self._channel.integrated_call(0, b"/", None, None, (), None, ((last, _last),), None)
        call.cancel(cygrpc.StatusCode.cancelled, SHUTTING_DOWN)
        self._thread.join()

    def _spin(self) -> None:
        while True:
            event = self._channel.next_call_event()
            if event.completion_type is cygrpc.CompletionType.queue_timeout:
                continue
            if event.tag is _last:
                break
            self._hand_over.give(event)
            del event  # its call is not freed while it is referred to
        # The queue is destroyed with the channel. Nobody may be in it then, nor on the way to it: so its own thread
        # does that, and takes what is left of calls that are over.
        self._channel.close_on_fork(cygrpc.StatusCode.cancelled, SHUTTING_DOWN)


def _ignore(_event: object) -> None:
    pass


def _last(_event: object) -> None:
    """The tag of the event after which the thread of a channel ends."""
