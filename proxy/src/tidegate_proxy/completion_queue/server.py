"""The serving side: one thread takes events from the queue and runs the callbacks of calls."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
from grpc._cython import cygrpc

log = logging.getLogger(__name__)

Metadata = Sequence[tuple[str, str | bytes]]
Options = Sequence[tuple[str, int | str]]
_NONE: Final = ()
_LONG_S: Final = 3600.0


def settled(options: Options) -> Options:
    """Options of gRPC's, each once: the last of a name counts. gRPC's core itself takes the first, without a word."""
    return tuple(dict(options).items())


class Call:
    """One RPC of a client. Its methods may be called from any thread; its callbacks run in the server's."""

    __slots__ = ("_began", "_call", "_ended", "_event", "_lock", "_server", "gone", "method", "on_gone")

    def __init__(self, server: "Server", event: Any) -> None:  # noqa: ANN401 - cygrpc is untyped
        self.method: str = event.call_details.method.decode("utf-8", "replace")
        """Full name, such as `/inference.GRPCInferenceService/ModelInfer`."""
        self.gone = False
        """Whether the client gave up, its connection broke or its deadline passed before the call was ended."""
        self.on_gone: Callable[[], None] | None = None
        """Called when that happens; set it before the first `receive`."""
        self._server = server
        self._event = event
        self._call = event.call
        self._began = False
        self._ended = False
        self._lock = threading.Lock()
        self._call.start_server_batch((cygrpc.ReceiveCloseOnServerOperation(0),), self._closed)

    @property
    def metadata(self) -> Metadata:
        """The client's metadata, keys in lower case."""
        metadata: Metadata = self._event.invocation_metadata
        return metadata

    def peer(self) -> str:
        """The client's address."""
        return str(self._call.peer().decode("utf-8", "replace"))

    def remaining_s(self) -> float | None:
        """Time until the client's deadline, at least 0; None when it has none."""
        deadline_s: float = self._event.call_details.deadline
        remaining_s = deadline_s - time.time()
        return max(0.0, remaining_s) if remaining_s < 1e9 else None  # more than that is the core's infinite future

    def receive(self, then: Callable[[bytes | None], None]) -> None:
        """Have `then` called with the next message, or with None when the client sends no more. One at a time."""
        self._call.start_server_batch(
            (cygrpc.ReceiveMessageOperation(0),), lambda event: then(event.batch_operations[0].message())
        )

    def answer(self, message: bytes, then: Callable[[Any], None] | None = None) -> None:
        """End a unary call well. `then` is called, with something of no meaning, once the answer is on its way."""
        if self._end():
            self._call.start_server_batch(
                (
                    cygrpc.SendInitialMetadataOperation(_NONE, 0),
                    cygrpc.SendMessageOperation(message, 0),
                    cygrpc.SendStatusFromServerOperation(_NONE, cygrpc.StatusCode.ok, b"", 0),
                ),
                then or _ignore,
            )

    def send(self, message: bytes, then: Callable[[Any], None]) -> None:
        """Send one message of a stream; `then` is called, as by `answer`, when the next one may be sent."""
        operations: tuple[Any, ...] = (cygrpc.SendMessageOperation(message, 0),)
        if not self._began:
            self._began = True
            operations = (cygrpc.SendInitialMetadataOperation(_NONE, 0), *operations)
        self._call.start_server_batch(operations, then)

    def end(self, code: grpc.StatusCode = grpc.StatusCode.OK, details: str = "") -> None:
        """End a call without a further message. Only the first end of a call counts."""
        if self._end():
            operations: tuple[Any, ...] = (
                cygrpc.SendStatusFromServerOperation(_NONE, code.value[0], details.encode(), 0),
            )
            if not self._began:
                operations = (cygrpc.SendInitialMetadataOperation(_NONE, 0), *operations)
            self._call.start_server_batch(operations, _ignore)

    def _end(self) -> bool:
        with self._lock:
            first = not self._ended
            self._ended = True
        return first

    def _closed(self, event: Any) -> None:  # noqa: ANN401 - cygrpc is untyped
        self._server.closed(self)
        if event.batch_operations[0].cancelled():
            self.gone = True
            if not self._ended and self.on_gone:
                self.on_gone()
        self.on_gone = None  # it refers to what refers to this call


class Server:
    """Listens, and gives every call to `accept` in its own thread."""

    def __init__(self, accept: Callable[[Call], None], options: Options) -> None:
        self._accept = accept
        self._queue = cygrpc.CompletionQueue()
        self._server = cygrpc.Server(settled(options), False)
        self._server.register_completion_queue(self._queue)
        self._open: set[Call] = set()
        self._idle = threading.Event()
        self._idle.set()
        self._stopping = False
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, name="grpc", daemon=True)

    def listen(self, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
        """Bind an address before `start`; its port. Raises OSError when it cannot be bound."""
        if credentials is None:
            port: int = self._server.add_http2_port(address.encode())
        else:
            port = self._server.add_http2_port(address.encode(), credentials._credentials)
        if not port:
            raise OSError(f"cannot listen on {address}: is the port taken?")
        return port

    def start(self) -> None:
        """Begin to serve."""
        self._server.start()
        self._server.request_call(self._queue, self._queue, self._called)
        self._thread.start()

    def stop(self, grace_s: float) -> bool:
        """Take no more calls, let those under way end, cut off what has not ended then; whether all had. Blocks."""
        if not self._thread.is_alive():
            return True
        self._stopping = True
        self._server.shutdown(self._queue, self._shut)
        drained = self._idle.wait(grace_s)
        if not drained:
            self._server.cancel_all_calls()
        self._thread.join()
        return drained

    @property
    def open_calls(self) -> int:
        """Calls that have not ended."""
        return len(self._open)

    def closed(self, call: Call) -> None:
        """A call is over."""
        self._open.discard(call)
        if not self._open:
            self._idle.set()

    def _serve(self) -> None:
        while not self._stopped:
            event = self._queue.poll(time.time() + _LONG_S)
            if event.completion_type is not cygrpc.CompletionType.queue_timeout:
                try:
                    event.tag(event)
                except Exception:  # one call's fault must not end the service for all others
                    log.exception("a call's callback failed")
            del event  # its call is not freed while it is referred to, and the queue spins until it is

    def _called(self, event: Any) -> None:  # noqa: ANN401 - cygrpc is untyped
        if not event.success:
            return  # the server is stopping
        if not self._stopping:
            self._server.request_call(self._queue, self._queue, self._called)
        call = Call(self, event)
        self._open.add(call)
        self._idle.clear()
        self._accept(call)

    def _shut(self, _event: object) -> None:
        self._stopped = True


def _ignore(_event: object) -> None:
    pass
