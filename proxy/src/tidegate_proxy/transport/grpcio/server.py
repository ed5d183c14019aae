"""The serving side: one thread takes events from the queue, and the event loop runs the callbacks of calls."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
from grpc._cython import cygrpc

from tidegate_proxy import refusal
from tidegate_proxy.access.tls import server_credentials
from tidegate_proxy.bounds import TOO_MUCH, Bounds
from tidegate_proxy.configuration.config import ServerTls
from tidegate_proxy.configuration.limits import LimitsConfig
from tidegate_proxy.faults import faults
from tidegate_proxy.liveness import BEAT_S, Liveness
from tidegate_proxy.outcome import own_fault
from tidegate_proxy.transport.grpcio.handover import HandOver
from tidegate_proxy.transport.grpcio.options import server_options
from tidegate_proxy.transport.interface import Metadata

_NONE: Final = ()
SWEEP_S: Final = 0.25
"""How often calls are looked at that take too long."""
BACKLOG: Final = 128
"""Calls that the core may hand over before the event loop has asked for more."""


class Call:
    """One RPC of a client. Its methods and callbacks are for the event loop."""

    __slots__ = (
        *("_began", "_call", "_ended", "_event", "_held", "_server", "_unread"),
        *("gone", "method", "on_gone", "owner"),
    )

    def __init__(self, server: "Server", event: Any) -> None:  # noqa: ANN401 - cygrpc is untyped
        self.method: str = event.call_details.method.decode("utf-8", "replace")
        """Full name, such as `/inference.GRPCInferenceService/ModelInfer`."""
        self.gone = False
        """Whether the client gave up, its connection broke or its deadline passed before the call was ended."""
        self.on_gone: Callable[[], None] | None = None
        """Called when that happens; set it before the first `receive`."""
        self.owner = ""
        self._server = server
        self._event = event
        self._call = event.call
        self._began = False
        self._ended = False
        self._held = 0
        """Bytes of its requests that count as in flight."""
        self._unread = 0
        """Bytes of the message that is being sent."""
        self._call.start_server_batch((cygrpc.ReceiveCloseOnServerOperation(0),), self._closed)

    @property
    def metadata(self) -> Metadata:
        """The client's metadata, keys in lower case."""
        metadata: Metadata = self._event.invocation_metadata
        return metadata

    @property
    def unread_bytes(self) -> int:
        """The bytes of the message that its client has not taken; 0 when there is none."""
        return self._unread

    def peer(self) -> str:
        """The client's address."""
        return str(self._call.peer().decode("utf-8", "replace"))

    def remaining_s(self) -> float | None:
        """Time until the client's deadline, at least 0; None when it has none."""
        deadline_s: float = self._event.call_details.deadline
        remaining_s = deadline_s - time.time()
        return max(0.0, remaining_s) if remaining_s < 1e9 else None  # more than that is the core's infinite future

    def receive(self, then: Callable[[bytes | None], None], within_s: float | None = None) -> None:
        """Have `then` called with the next message, or with None when the client sends no more. One at a time.

        The call ends instead where too much is in flight, or where the message is not whole in time.
        """
        if within_s is not None:
            self._server.awaits(self, within_s)
        self._call.start_server_batch((cygrpc.ReceiveMessageOperation(0),), lambda event: self._received(event, then))

    def release(self, size: int) -> None:
        """So many bytes of what was received are not held any more."""
        size = min(size, self._held)
        self._held -= size
        self._server.bounds.give_back(size, self.owner)

    def answer(self, message: bytes) -> None:
        """End a unary call well."""
        if self._end():
            self._send(
                (
                    cygrpc.SendInitialMetadataOperation(_NONE, 0),
                    cygrpc.SendMessageOperation(message, 0),
                    cygrpc.SendStatusFromServerOperation(_NONE, cygrpc.StatusCode.ok, b"", 0),
                ),
                len(message),
                _ignore,
            )

    def send(self, message: bytes, then: Callable[[Any], None]) -> None:
        """Send one message of a stream; `then` is called, with something of no meaning, when the next may be sent."""
        if self._ended:
            return
        operations: tuple[Any, ...] = (cygrpc.SendMessageOperation(message, 0),)
        if not self._began:
            self._began = True
            operations = (cygrpc.SendInitialMetadataOperation(_NONE, 0), *operations)
        self._send(operations, len(message), then)

    def end(self, code: grpc.StatusCode = grpc.StatusCode.OK, details: str = "", reason: str = "") -> None:
        """End a call without a further message. Only the first end of a call counts. `reason`: as `transport.Call`."""
        if self._end():
            trailing = ((refusal.HEADER, reason),) if reason else _NONE
            operations: tuple[Any, ...] = (
                cygrpc.SendStatusFromServerOperation(trailing, code.value[0], details.encode(), 0),
            )
            if not self._began:
                operations = (cygrpc.SendInitialMetadataOperation(_NONE, 0), *operations)
            self._call.start_server_batch(operations, _ignore)

    def refuse(self, code: grpc.StatusCode, details: str) -> None:
        """End it from this side, as if the client had gone: whoever works for it is told to stop."""
        self.end(code, details)
        self.gone = True
        if self.on_gone:
            self.on_gone()

    def cut_off(self) -> None:
        """End it whatever it sends: its client takes nothing."""
        self._call.cancel()

    def _received(self, event: Any, then: Callable[[bytes | None], None]) -> None:  # noqa: ANN401 - cygrpc is untyped
        message: bytes | None = event.batch_operations[0].message()
        self._server.awaits_no_more(self)
        if message is not None and not self._hold(len(message)):
            self._server.bounds.count("grpc", "max_bytes_in_flight")
            self.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_MUCH)
        elif not self._ended or message is None:
            try:
                then(message)
            except Exception as error:  # else its client would wait for ever
                faults.report("a call", error)
                self.refuse(grpc.StatusCode.INTERNAL, own_fault().details)

    def _hold(self, size: int) -> bool:
        if not self._server.bounds.take(size, self.owner):
            return False
        self._held += size
        return True

    def _send(self, operations: tuple[Any, ...], size: int, then: Callable[[Any], None]) -> None:
        self._unread = size
        self._server.sends(self, size)

        def sent(event: Any) -> None:  # noqa: ANN401 - cygrpc is untyped
            self._server.has_sent(self, size)
            then(event)

        try:
            self._call.start_server_batch(operations, sent)
        except BaseException:
            self._server.has_sent(self, size)
            raise

    def _end(self) -> bool:
        if self._ended:
            return False
        self._ended = True
        self.release(self._held)
        return True

    def _closed(self, event: Any) -> None:  # noqa: ANN401 - cygrpc is untyped
        self._server.closed(self)
        self.release(self._held)
        if event.batch_operations[0].cancelled():
            self.gone = True
            if not self._ended and self.on_gone:
                self.on_gone()
        self.on_gone = None  # it refers to what refers to this call


class Server:
    """Listens, and gives every call to `accept`. All in the event loop, but for the waiting."""

    def __init__(
        self, accept: Callable[[Call], None], limits: LimitsConfig, bounds: Bounds, *, reuse_port: bool = False
    ) -> None:
        """`bounds` counts what is received and sent. `reuse_port`: others may listen on the same port."""
        self._accept = accept
        self.bounds = bounds
        self._send_timeout_s = limits.send_timeout_s
        self._awaited: dict[Call, float] = {}
        """Calls whose message is not whole yet, and until when it has to be; those that came first, first."""
        self._sending: dict[Call, float] = {}
        """Calls with a message that its reader has not taken, and since when."""
        self._loop = asyncio.get_running_loop()
        self._sweeping: asyncio.Handle | None = None
        self._hand_over = HandOver()
        self._queue = cygrpc.CompletionQueue()
        self._server = cygrpc.Server(server_options(limits, reuse_port=reuse_port), False)
        self._server.register_completion_queue(self._queue)
        self._open: set[Call] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False
        self._seen_ns = time.monotonic_ns()
        """The thread's last sign of life."""
        self._thread = threading.Thread(target=self._spin, name="grpc", daemon=True)

    async def listen(self, address: str, tls: ServerTls | None = None) -> int:
        """Bind HOST:PORT and serve; the port. Raises OSError when it cannot be bound, and TlsError."""
        credentials = (server_credentials(tls)._credentials,) if tls else ()
        port: int = self._server.add_http2_port(address.encode(), *credentials)
        if not port:
            raise OSError(f"cannot listen on {address}: is the port taken?")
        self._server.start()
        for _ in range(BACKLOG):
            self._server.request_call(self._queue, self._queue, self._called)
        self._thread.start()
        self._sweep()
        return port

    def watch(self, liveness: Liveness) -> None:
        """Have the signs of life of its thread looked at."""
        liveness.watch("gRPC thread", lambda: self._seen_ns)

    async def retire(self, within_s: float) -> None:
        """Nothing: gRPC's core tells clients to go elsewhere when it takes no more calls, and not before."""

    async def stop(self, grace_s: float) -> bool:
        """Take no more calls, let those under way end, cut off what has not ended then; whether all had."""
        if not self._thread.is_alive():
            return True
        self._stopping = True
        self._server.shutdown(self._queue, _shut)
        try:
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        except TimeoutError:
            self._server.cancel_all_calls()
        drained = self._idle.is_set()
        await asyncio.to_thread(self._thread.join)
        if self._sweeping:
            self._sweeping.cancel()
        return drained

    @property
    def open_calls(self) -> int:
        """Calls that have not ended."""
        return len(self._open)

    def awaits(self, call: Call, within_s: float) -> None:
        """A call's message has to be whole by then; the same for all calls."""
        self._awaited[call] = time.monotonic() + within_s

    def awaits_no_more(self, call: Call) -> None:
        """It has come."""
        self._awaited.pop(call, None)

    def sends(self, call: Call, size: int) -> None:
        """A message is on its way to a reader who may be slow."""
        self._sending[call] = time.monotonic()
        self.bounds.unread(size)
        if self.bounds.unread_bytes > self.bounds.max_unread_bytes:
            self._sweep_soon()

    def has_sent(self, call: Call, size: int) -> None:
        """It was taken, or will not be."""
        self._sending.pop(call, None)
        self.bounds.unread(-size)

    def closed(self, call: Call) -> None:
        """A call is over."""
        self._awaited.pop(call, None)
        self._open.discard(call)
        if not self._open:
            self._idle.set()

    def _spin(self) -> None:
        """Take events from the queue until the last one. In the thread."""
        while True:
            event = self._queue.poll(time.time() + BEAT_S)
            self._seen_ns = time.monotonic_ns()
            if event.completion_type is not cygrpc.CompletionType.queue_timeout:
                if event.tag is _shut:
                    return
                self._hand_over.give(event)
            del event  # its call is not freed while it is referred to, and the queue spins until it is

    def _sweep_soon(self) -> None:
        if self._sweeping:
            self._sweeping.cancel()
        self._sweeping = self._loop.call_soon(self._sweep)

    def _sweep(self) -> None:
        """End calls whose clients are too slow, or hold too much."""
        self._sweeping = self._loop.call_later(SWEEP_S, self._sweep)
        now = time.monotonic()
        while self._awaited:
            call, until = next(iter(self._awaited.items()))
            if now <= until:
                break
            self._awaited.pop(call, None)
            self.bounds.count("grpc", "body_timeout_s")
            call.refuse(grpc.StatusCode.DEADLINE_EXCEEDED, "the request did not come within its time limit")
        sending = list(self._sending.items())
        for call, since in sending:
            if now - since <= self._send_timeout_s:
                break  # those behind began to be sent later
            self._cut_off(call, "send_timeout_s")
        if self.bounds.unread_bytes > min(self.bounds.max_unread_bytes_per_connection, self.bounds.max_unread_bytes):
            self._look_for_slow_readers([call for call, _ in sending])

    def _look_for_slow_readers(self, calls: Sequence[Call]) -> None:
        readers: dict[str, list[Call]] = {}
        for call in calls:
            readers.setdefault(call.peer(), []).append(call)
        unread = {reader: sum(call.unread_bytes for call in its) for reader, its in readers.items()}
        too_much = sum(unread.values()) - self.bounds.max_unread_bytes  # those cut off count until they notice
        for reader in sorted(unread, key=unread.__getitem__, reverse=True):
            if unread[reader] > self.bounds.max_unread_bytes_per_connection and len(readers[reader]) > 1:
                limit = "max_unread_bytes_per_connection"
            elif too_much > 0:
                limit = "max_unread_bytes"
            else:
                continue
            too_much -= unread[reader]
            for call in readers[reader]:
                self._cut_off(call, limit)

    def _cut_off(self, call: Call, limit: str) -> None:
        if self._sending.pop(call, None) is not None:
            self.bounds.count("grpc", limit)
            call.cut_off()

    def _called(self, event: Any) -> None:  # noqa: ANN401 - cygrpc is untyped
        if not event.success:
            return  # the server is stopping
        if not self._stopping:
            self._server.request_call(self._queue, self._queue, self._called)
        call = Call(self, event)
        self._open.add(call)
        self._idle.clear()
        self._accept(call)


def _shut(_event: object) -> None:
    """The tag of the last event."""


def _ignore(_event: object) -> None:
    pass
