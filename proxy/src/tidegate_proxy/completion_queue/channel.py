"""The calling side: one thread per channel takes events from its queue and runs the callbacks of calls."""

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

import grpc
from grpc._cython import cygrpc

from tidegate_proxy.completion_queue.server import Metadata, Options, settled

log = logging.getLogger(__name__)

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
Answered = Callable[[bytes | None, grpc.StatusCode, str], None]
"""Called with the answer, the status and its details; the answer is None unless the status is OK."""


class PendingCall:
    """A call that was sent."""

    __slots__ = ("_call",)

    def __init__(self, call: Any) -> None:  # noqa: ANN401 - cygrpc is untyped
        self._call = call

    def cancel(self) -> None:
        """Give it up: unless it has ended, `then` is called with CANCELLED, and the server is told."""
        self._call.cancel(cygrpc.StatusCode.cancelled, "given up by Tidegate")


class Channel:
    """A connection to one server. Methods may be called from any thread; callbacks run in the channel's own."""

    def __init__(
        self,
        address: str,
        options: Options,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self._channel = cygrpc.Channel(
            address.encode(),
            settled(options),
            credentials._credentials if credentials else None,
        )
        self._thread = threading.Thread(target=self._spin, name=f"grpc to {address}", daemon=True)
        self._thread.start()

    def unary(self, method: str, message: bytes, then: Answered, metadata: Metadata = ()) -> PendingCall:
        """Send a message; `then` is called when the call is over, exactly once."""

        def ended(event: Any) -> None:  # noqa: ANN401 - cygrpc is untyped
            _, _, _, _, received, status = event.batch_operations
            code = _CODES[status.code()]
            then(received.message() if code is grpc.StatusCode.OK else None, code, status.details() or "")

        operations = (
            cygrpc.SendInitialMetadataOperation(metadata, 0),
            cygrpc.SendMessageOperation(message, 0),
            cygrpc.SendCloseFromClientOperation(0),
            cygrpc.ReceiveInitialMetadataOperation(0),
            cygrpc.ReceiveMessageOperation(0),
            cygrpc.ReceiveStatusOnClientOperation(0),
        )
        return PendingCall(
            self._channel.integrated_call(0, method.encode(), None, None, metadata, None, ((operations, ended),), None)
        )

    def close(self) -> None:
        """End every call under way with CANCELLED, and the thread."""
        self._channel.close(cygrpc.StatusCode.cancelled, "Tidegate is shutting down")
        self._thread.join()

    def _spin(self) -> None:
        while True:
            event = self._channel.next_call_event()
            if event.completion_type is cygrpc.CompletionType.queue_shutdown:
                return
            if event.completion_type is not cygrpc.CompletionType.queue_timeout:
                try:
                    event.tag(event)
                except Exception:  # one call's fault must not end the service for all others
                    log.exception("a call's callback failed")
            del event
