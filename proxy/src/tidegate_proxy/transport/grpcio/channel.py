"""The calling side: one thread per channel takes events from its queue and gives them to the event loop."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import grpc
from grpc._cython import cygrpc

from tidegate_proxy.access.tls import channel_credentials, channel_options
from tidegate_proxy.configuration.config import TritonTls
from tidegate_proxy.transport.grpcio.options import CHANNEL_OPTIONS
from tidegate_proxy.transport.grpcio.stream import CODES, PendingStream
from tidegate_proxy.transport.interface import Answered, Ended, Metadata

log = logging.getLogger(__name__)

POLL_S: Final = 0.001


class PendingCall:
    """A call that was sent."""

    __slots__ = ("call",)

    def __init__(self) -> None:
        self.call: Any = None

    def cancel(self) -> None:
        """Give it up: unless it has ended, `then` is called with CANCELLED, and the server is told."""
        self.call.cancel(cygrpc.StatusCode.cancelled, "given up by Tidegate")


class Channel:
    """A connection to one server. Methods may be called from any thread; callbacks run in the event loop."""

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
        self._loop = asyncio.get_running_loop()
        self._pending: set[PendingCall | PendingStream] = set()
        self._polling = False
        self._thread = threading.Thread(target=self._spin, name=f"grpc to {address}", daemon=True)
        self._thread.start()

    def unary(
        self, method: str, message: bytes, then: Answered, metadata: Metadata = (), timeout_s: float | None = None
    ) -> PendingCall:
        """Send a message; `then` is called when the call is over, exactly once."""

        def ended(event: Any) -> None:  # noqa: ANN401 - cygrpc is untyped
            self._pending.discard(call)
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
        call = PendingStream(then, self._pending.discard)
        head = (cygrpc.SendInitialMetadataOperation(metadata, 0), cygrpc.ReceiveInitialMetadataOperation(0))
        status = ((cygrpc.ReceiveStatusOnClientOperation(0),), call.ended)
        call.call = self._begun(call, method, metadata, timeout_s, status, (head, _ignore))
        return call

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
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        for call in list(self._pending):
            call.cancel()
        # The queue is destroyed with the channel: its thread has to wait in it then, not to be on its way back to it.
        while self._pending or not self._polling:
            time.sleep(POLL_S)
        self._channel.close(cygrpc.StatusCode.cancelled, "Tidegate is shutting down")
        self._thread.join()

    def _spin(self) -> None:
        while True:
            self._polling = True
            event = self._channel.next_call_event()
            self._polling = False
            if event.completion_type is cygrpc.CompletionType.queue_shutdown:
                return
            if event.completion_type is not cygrpc.CompletionType.queue_timeout:
                self._loop.call_soon_threadsafe(_call_back, event)
            del event


def _call_back(event: Any) -> None:  # noqa: ANN401 - cygrpc is untyped
    try:
        event.tag(event)
    except Exception:  # one call's fault must not end the service for all others
        log.exception("a call's callback failed")


def _ignore(_event: object) -> None:
    pass
