"""ModelStreamInfer: a stream's requests are scheduled one by one; what cannot be goes on to one Triton, as a stream.

Answers of scheduled requests leave in the order of the requests, as from Triton. Those of forwarded requests (decoupled
models, sequences) leave as they come: any number of them may belong to one request.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

from tritonclient.grpc import service_pb2

from tidegate_proxy.client import Client, Outcome, RequestFailed
from tidegate_proxy.completion_queue import Call
from tidegate_proxy.control import Control
from tidegate_proxy.driver import Driver
from tidegate_proxy.envelope import Envelope, NotSchedulable
from tidegate_proxy.inference import Inference
from tidegate_proxy.wire import encode_varint, first_string

MAX_UNDER_WAY: Final = 1000
"""Requests of one stream that wait; beyond it the next is not read before an answer has left."""
_INFER_RESPONSE_TAG: Final = b"\x12"
"""ModelStreamInferResponse.infer_response"""


def _final() -> bytes:
    response = service_pb2.ModelInferResponse()
    response.parameters["triton_final_response"].bool_param = True
    serialized: bytes = response.SerializeToString()
    return serialized


_FINAL: Final = _final()
"""Appended to a serialized response, it adds the parameter with which Triton marks the last one of a request."""


class InferStream:
    """One client's stream."""

    def __init__(
        self,
        call: Call,
        inference: Inference,
        driver: Driver,
        control: Control,
        in_loop: Callable[[Call, Coroutine[Any, Any, None]], None],
    ) -> None:
        self.driver = driver
        self._call = call
        self._inference = inference
        self._control = control
        self._in_loop = in_loop
        self._lock = threading.RLock()
        self._clients: deque[_StreamClient] = deque()
        """Whose answers are due, in their order."""
        self._outbox: deque[bytes] = deque()
        self._sending = False
        self._reading = False
        self._client_done = False
        """The client sends no more."""
        self._relay: _Relay | None = None
        self._error: RequestFailed | None = None
        """With what the stream ends, once what was sent before is on its way."""
        self._strict = dict(call.metadata).get("triton_grpc_error") == "true"

    def begin(self) -> None:
        """Read the first request."""
        self._call.on_gone = self._leave
        self._read()

    # Requests ----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        with self._lock:
            if self._reading or self._client_done or self._error or len(self._clients) >= MAX_UNDER_WAY:
                return
            self._reading = True
        self._call.receive(self._received)

    def _received(self, message: bytes | None) -> None:
        arrival_ns = time.monotonic_ns()
        self._reading = False
        if message is None:
            self._client_done = True
            if self._relay:
                self._relay.put(None)
            self._send()
            return
        try:
            client = _StreamClient(self._inference.open(message), self)
        except NotSchedulable:
            self._forward(message)
            return
        with self._lock:
            self._clients.append(client)
        self._inference.submit(client, arrival_ns, self._call.remaining_s())
        self._read()

    def _forward(self, message: bytes) -> None:
        with self._lock:
            if self._relay is None:
                self._relay = _Relay()
                self._in_loop(self._call, self._run_relay(self._relay, first_string(message)))
        self._relay.put(message)
        self._read()

    async def _run_relay(self, relay: "_Relay", model: str) -> None:
        relay.loop = asyncio.get_running_loop()
        # The loop makes the task's cancellation the call's; those who wait for scheduled answers leave, too.
        cancel = self._call.on_gone

        def gone() -> None:
            self._leave()
            if cancel:
                cancel()

        self._call.on_gone = gone
        try:
            async for answer in self._control.stream(
                self._call.method, model, relay.messages(), self._call.metadata, self._call.remaining_s()
            ):
                self._put(answer)
            error = None
        except RequestFailed as failure:
            error = failure
        with self._lock:
            self._relay = None
            self._error = self._error or error
        self._send()

    # Answers -----------------------------------------------------------------------------------------------------

    def settled(self) -> None:
        """A scheduled request has its outcome."""
        with self._lock:
            while not self._error and self._clients and (outcome := self._clients[0].outcome) is not None:
                client = self._clients.popleft()
                if isinstance(outcome, RequestFailed) and self._strict:
                    self._error = outcome
                    break
                self._outbox.append(_wrapped(outcome, client.envelope))
        self._send()
        self._read()

    def _put(self, message: bytes) -> None:
        with self._lock:
            self._outbox.append(message)
        self._send()

    def _send(self, _event: object = None) -> None:
        """Send the next message, or end the stream when there will be none."""
        with self._lock:
            if _event is not None:
                self._sending = False
            if self._sending:
                return
            if self._outbox:
                self._sending = True
                message = self._outbox.popleft()
            elif self._error:
                self._call.end(self._error.code, self._error.details)
                return
            else:
                if self._client_done and not self._clients and self._relay is None:
                    self._call.end()
                return
        self._call.send(message, self._send)

    def _leave(self) -> None:
        """The client is gone: nobody waits for its answers."""
        with self._lock:
            self._client_done = True
            clients, self._clients = self._clients, deque()
        for client in clients:
            self.driver.leave(client)
        if self._relay:
            self._relay.put(None)


class _StreamClient(Client):
    """One request of a stream."""

    __slots__ = ("_stream", "outcome")

    def __init__(self, envelope: Envelope, stream: InferStream) -> None:
        super().__init__(envelope)
        self.outcome: Outcome | None = None
        self._stream = stream

    def resolve(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._stream.settled()
        self._stream.driver.delivered(self)


class _Relay:
    """What goes on to a Triton, from the server's thread into the loop."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._messages: deque[bytes | None] = deque()
        self._more = asyncio.Event()

    def put(self, message: bytes | None) -> None:
        """Add a message; None: that was the last."""
        self._messages.append(message)
        if self.loop:
            self.loop.call_soon_threadsafe(self._more.set)

    async def messages(self) -> AsyncIterator[bytes]:
        """The messages, as they come."""
        while True:
            self._more.clear()
            while self._messages:
                message = self._messages.popleft()
                if message is None:
                    return
                yield message
            await self._more.wait()


def _wrapped(outcome: Outcome, envelope: Envelope) -> bytes:
    """A serialized ModelStreamInferResponse."""
    if isinstance(outcome, RequestFailed):
        failed = service_pb2.ModelStreamInferResponse(error_message=outcome.details)
        failed.infer_response.id = envelope.header.id
        serialized: bytes = failed.SerializeToString()
        return serialized
    return b"".join((_INFER_RESPONSE_TAG, encode_varint(len(outcome) + len(_FINAL)), outcome, _FINAL))
