"""The gRPC server that clients see: inference is scheduled, every other call is answered in the event loop."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

import grpc

from tidegate_proxy.backend import CHANNEL_OPTIONS, INFER, SERVICE
from tidegate_proxy.client import Client, Outcome, RequestFailed
from tidegate_proxy.completion_queue import Call, Server
from tidegate_proxy.control import Control
from tidegate_proxy.driver import Driver
from tidegate_proxy.envelope import Envelope, NotSchedulable
from tidegate_proxy.inference import Inference
from tidegate_proxy.streams import InferStream

log = logging.getLogger(__name__)

STREAM_INFER = SERVICE + "ModelStreamInfer"


class Front:
    """Answers every method of Triton's service, parsing no more than scheduling needs."""

    def __init__(self, inference: Inference, driver: Driver, control: Control) -> None:
        self._inference = inference
        self._driver = driver
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = Server(self._accept, [*CHANNEL_OPTIONS, ("grpc.so_reuseport", 0)])

    def listen(self, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
        """Bind and serve; the port. Raises OSError when the address cannot be bound."""
        port = self._server.listen(address, credentials)
        self._server.start()
        return port

    async def close(self, drain_s: float) -> None:
        """Take no more calls and let those under way end."""
        await asyncio.to_thread(self._server.stop, drain_s)

    def _accept(self, call: Call) -> None:
        """In the server's thread."""
        if call.method == INFER:
            arrival_ns = time.monotonic_ns()
            call.receive(lambda message: self._infer(call, message, arrival_ns))
        elif call.method == STREAM_INFER:
            InferStream(call, self._inference, self._driver, self._control, self._in_loop).begin()
        else:
            call.receive(lambda message: self._forward(call, message))

    def _infer(self, call: Call, message: bytes | None, arrival_ns: int) -> None:
        if message is None:
            self._forward(call, message)
            return
        try:
            envelope = self._inference.open(message)
        except NotSchedulable:
            self._forward(call, message)
            return
        client = _UnaryClient(envelope, call, self._driver)
        call.on_gone = client.leave
        self._inference.submit(client, arrival_ns, call.remaining_s())
        if call.gone:  # it left before it could be told to whom
            client.leave()

    def _forward(self, call: Call, message: bytes | None) -> None:
        """Have a call answered in the event loop, as Triton would or by Triton."""
        if message is None:
            call.end(grpc.StatusCode.INTERNAL, "no message was received")
            return
        self._in_loop(call, self._answer(call, message))

    async def _answer(self, call: Call, message: bytes) -> None:
        try:
            answer = await self._control.unary(call.method, message, call.metadata, call.remaining_s())
        except RequestFailed as failure:
            call.end(failure.code, failure.details)
        else:
            call.answer(answer)

    def _in_loop(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine for a call in the event loop; it is cancelled when the client leaves."""
        self._loop.call_soon_threadsafe(self._spawn, call, work)

    def _spawn(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done(call))

        def cancel() -> None:
            self._loop.call_soon_threadsafe(task.cancel)

        call.on_gone = cancel
        if call.gone:
            task.cancel()

    def _done(self, call: Call) -> Callable[[asyncio.Task[None]], None]:
        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if task.cancelled():
                call.end(grpc.StatusCode.CANCELLED, "the client has left")
            elif error := task.exception():
                log.error("%s failed", call.method, exc_info=error)
                call.end(grpc.StatusCode.INTERNAL, f"Tidegate failed: {type(error).__name__}")

        return done


class _UnaryClient(Client):
    """One that waits for the answer to a ModelInfer."""

    __slots__ = ("_call", "_driver")

    def __init__(self, envelope: Envelope, call: Call, driver: Driver) -> None:
        super().__init__(envelope)
        self._call = call
        self._driver = driver

    def resolve(self, outcome: Outcome) -> None:
        if isinstance(outcome, RequestFailed):
            self._call.end(outcome.code, outcome.details)
        else:
            self._call.answer(outcome, self._delivered)

    def leave(self) -> None:
        self._driver.leave(self)

    def _delivered(self, _event: object) -> None:
        self._driver.delivered(self)
