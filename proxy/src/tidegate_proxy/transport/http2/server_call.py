"""gRPC call of a client: what every call has, and those whose connection this process has."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from grpc import StatusCode

from tidegate_proxy.base import refusal
from tidegate_proxy.transport.client_bounds import TOO_MUCH
from tidegate_proxy.transport.http2.headers import CallHeaders, Header, quoted
from tidegate_proxy.transport.http2.message import (
    ACCEPTED_ENCODINGS,
    PREFIX_BYTES,
    MessageAssembler,
    MessageDecompression,
    MessageError,
    single_message,
)
from tidegate_proxy.transport.interface import Metadata

if TYPE_CHECKING:
    from tidegate_proxy.transport.http2.server import ServerConnection

RESPONSE_HEADERS: Final[tuple[Header, ...]] = (
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", ACCEPTED_ENCODINGS),
)
OK_TRAILERS: Final[tuple[Header, ...]] = ((b"grpc-status", b"0"), (b"grpc-message", b""))
OPEN_BYTES: Final = 2048
"""Bytes counted for an open call besides metadata and messages: objects, stream, table entries."""
INFLATED_HERE: Final = 1 << 18
"""Bytes decompressed at once in the event loop, which takes some tenths of a millisecond."""
INFLATED_ASIDE: Final = 1 << 22
"""Size in bytes from which a message is decompressed in a thread at once."""
_DEADLINE: Final = "Deadline Exceeded"
_REASON: Final = refusal.REASON_HEADER.encode()
_PUSHBACK: Final = b"grpc-retry-pushback-ms"
"""Trailer of gRPC's retry design (A6): the time after which a client's library retries."""
Received = Callable[[bytes | None], None]


class RpcCall(ABC):
    """gRPC call of a client."""

    __slots__ = ("_ended", "_then_gone", "gone", "metadata", "method", "owner")

    def __init__(self, method: str, metadata: Metadata) -> None:
        self.method = method
        """Full method name, such as `/inference.GRPCInferenceService/ModelInfer`."""
        self.metadata = metadata
        """Metadata of the client, keys in lower case."""
        self.gone = False
        """Whether the client cancelled, its connection broke or its deadline passed before the call ended."""
        self.owner = ""
        """Client that the call belongs to, whose limits apply. Set it before the first `receive`."""
        self._ended = False
        self._then_gone: Callable[[], None] | None = None

    def add_disconnect_callback(self, then: Callable[[], None]) -> None:
        """Call `then` once the client is gone, at once if it is; never after the call has ended."""
        if self.gone:
            then()
        elif not self._ended:
            self._then_gone = then

    def _leave(self) -> None:
        """Handle a client that left."""
        self.gone = True
        if self._then_gone:
            self._then_gone()
        self._then_gone = None  # it refers to what refers to this call

    @abstractmethod
    def peer(self) -> str:
        """Address of the client, as gRPC writes it."""

    @abstractmethod
    def remaining_s(self) -> float | None:
        """Return the seconds until the client's deadline, at least 0; None without a deadline."""

    @abstractmethod
    def receive(self, then: Callable[[bytes | None], None], within_s: float | None = None) -> None:
        """Call `then` with the next message, or with None when the client sends no more. One at a time.

        The call ends instead if a limit of bytes in flight is reached, or if the message is incomplete after
        `within_s`.
        """

    @abstractmethod
    def release(self, size: int) -> None:
        """Release `size` received bytes."""

    @abstractmethod
    def answer(self, message: bytes) -> None:
        """End a unary call with its response."""

    @abstractmethod
    def send(self, message: bytes, then: Callable[[object], None]) -> None:
        """Send one message of a stream; `then` is called, with an unused argument, when the next may be sent."""

    @abstractmethod
    def end(self, code: StatusCode = StatusCode.OK, details: str = "", reason: str = "") -> None:
        """End a call without a further message. Only the first end of a call counts.

        `reason`: the `tidegate-reason`, sent as trailing metadata; "" for none.
        """


class Http2Call(RpcCall):
    """gRPC call of a client. Use its methods and callbacks only in the event loop's thread."""

    __slots__ = (
        "_assembler",
        "_began",
        "_connection",
        "_deadline",
        "_encoding",
        "_held",
        "_inflating",
        "_is_delivering",
        "_receiver",
        "_unacknowledged",
        "deadline_s",
        "sent_all",
        "stream_id",
        "until_s",
    )

    def __init__(self, connection: "ServerConnection", stream_id: int, opening: CallHeaders) -> None:
        super().__init__(opening.method, opening.metadata)
        self.stream_id = stream_id
        self.deadline_s: float | None = None
        """Deadline on the event loop's clock; None without one."""
        self.until_s = 0.0
        """Instant on the loop's clock by which its message, or the rest of the client's data, is due; 0: none."""
        self.sent_all = False
        """Whether the client sends no more."""
        self._connection = connection
        self._encoding = opening.encoding
        self._assembler: MessageAssembler | None = None
        """Assembler of messages that arrive in pieces."""
        self._receiver: Received | None = None
        self._is_delivering = False
        """Whether messages are being given to those who wait for them: one that is asked for meanwhile follows."""
        self._inflating: asyncio.Future[None] | None = None
        self._began = False
        self._unacknowledged = 0
        self._held = 0
        """Bytes of its requests that count as in flight."""
        self._deadline: asyncio.TimerHandle | None = None

    def peer(self) -> str:
        """Address of the client, as gRPC writes it."""
        return self._connection.peer

    def remaining_s(self) -> float | None:
        """Return the seconds until the client's deadline, at least 0; None without a deadline."""
        return None if self.deadline_s is None else max(0.0, self.deadline_s - self._connection.now_s())

    def receive(self, then: Received, within_s: float | None = None) -> None:
        """Call `then` with the next message, or with None when the client sends no more. One at a time.

        The call ends instead if a limit of bytes in flight is reached, or if the message is incomplete after
        `within_s`.
        """
        self._receiver = then
        if within_s is not None:
            self.limit_rest(within_s)
        if self._unacknowledged:
            self._acknowledge()
        if not self._is_delivering and (self.sent_all or self._holds_part):
            self._connection.deliver_soon(self)

    def open(self) -> None:
        """Count the bytes that an open call holds. Raises MessageError if a limit is reached."""
        if not self._ended:
            self._hold(OPEN_BYTES + sum(len(key) + len(value) for key, value in self.metadata))

    def release(self, size: int) -> None:
        """Release `size` received bytes."""
        size = min(size, self._held)
        self._held -= size
        self._connection.bounds.give_back(size, self.owner)

    def answer(self, message: bytes) -> None:
        """End a unary call with its response."""
        if not self._ended:
            self.release(self._held)
            self._ended = True
            try:
                self._connection.answer(self, message)
            except Exception as error:
                self._connection.break_off(self, error)

    def send(self, message: bytes, then: Callable[[object], None]) -> None:
        """Send one message of a stream; `then` is called, with an unused argument, when the next may be sent."""
        if not self._ended:
            if not self._began:
                self._connection.begin(self)
                self._began = True
            self._connection.send(self.stream_id, message, then)

    def end(self, code: StatusCode = StatusCode.OK, details: str = "", reason: str = "") -> None:
        """End a call without a further message. Only the first end of a call counts. `reason`: as `RpcCall`."""
        if self._ended:
            return
        self.drop()
        self._ended = True
        status: tuple[Header, ...] = (
            (b"grpc-status", b"%d" % code.value[0]),
            (b"grpc-message", quoted(details, self._connection.most_details)),
        )
        if reason:
            word, retry_ms = refusal.split(reason)
            status += ((_REASON, word.encode()),)
            if retry_ms is not None:
                status += ((_PUSHBACK, b"%d" % retry_ms),)
        try:
            self._connection.end(
                self, status if self._began else (*RESPONSE_HEADERS, *status), is_first=not self._began
            )
        except Exception as error:
            self._connection.break_off(self, error)

    # For its connection ------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether the call has its end, which may not be written yet."""
        return self._ended

    def limit_rest(self, within_s: float | None) -> None:
        """Set the seconds within which the client must send the rest of its data; None for no limit."""
        self.until_s = 0.0 if within_s is None else self._connection.now_s() + within_s

    def expires_in(self, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        """End the call with DEADLINE_EXCEEDED after `seconds`."""
        self.deadline_s = loop.time() + seconds
        self._deadline = loop.call_later(seconds, self._expire)

    def add(self, data: bytes, *, is_last: bool) -> None:
        """Add data from the client. Raises MessageError."""
        self.sent_all = is_last
        receiver = self._receiver
        if receiver is None and not self._ended:
            self._unacknowledged += len(data)
        else:
            self._connection.acknowledge(self.stream_id, len(data))
        if self._ended:
            return
        most_bytes = int(self._connection.limits.max_message_bytes)
        if receiver and not self._holds_part and (message := single_message(data, most_bytes)) is not None:
            self._hold(len(message))
            self._hand_over(receiver, message)
            return
        if data:
            self._hold(len(data))
            if self._assembler is None:
                self._assembler = MessageAssembler(self._encoding, most_bytes)
            self._assembler.add(data)
        if is_last or (self._assembler and self._assembler.has_message):
            self.deliver()

    def forget(self) -> None:
        """Handle the end of its stream."""
        if self._deadline:
            self._deadline.cancel()
        if not self._ended:
            self._ended = True
            self.drop()
            self.leave()
        elif self._unacknowledged:
            self._acknowledge()
        self._then_gone = None  # it refers to what refers to this call

    def drop(self) -> None:
        """Discard received data."""
        self._assembler = None
        self._acknowledge()
        self.release(self._held)
        self._receiver = None
        self.until_s = 0.0

    def leave(self) -> None:
        """Handle a client that left."""
        self._leave()

    def _acknowledge(self) -> None:
        amount, self._unacknowledged = self._unacknowledged, 0
        self._connection.acknowledge(self.stream_id, amount)

    def deliver(self) -> None:
        """Deliver received messages to the receiver, one per request for it.

        Raises MessageError for a message that is malformed or too large.
        """
        if self._is_delivering:
            return
        self._is_delivering = True
        try:
            while receiver := self._receiver:
                message = self._assembler.take() if self._assembler else None
                if isinstance(message, MessageDecompression):
                    part = message.step(INFLATED_HERE)
                    if not message.is_done:
                        self._inflating = asyncio.ensure_future(self._inflate(message, part))
                        return  # it goes on delivering
                    self._hold(len(part) - message.wire_bytes)
                    message = part
                if message is not None:
                    self.release(PREFIX_BYTES)
                elif not self.sent_all:
                    break
                elif self._holds_part:
                    raise MessageError(StatusCode.INTERNAL, "the client ended its stream in the middle of a message")
                self._hand_over(receiver, message)
        except Exception as error:  # one call's fault must not end the connection of all others
            self._connection.fail(self, error)
        self._is_delivering = False

    async def _inflate(self, inflation: MessageDecompression, part: bytes) -> None:
        """Inflate the rest of a large message in threads, so that other calls do not wait for it."""
        parts, loop = [part], asyncio.get_running_loop()
        try:
            while not inflation.is_done:
                self._hold(len(parts[-1]))
                parts.append(await loop.run_in_executor(None, inflation.step, INFLATED_ASIDE))
                if self._ended:
                    return
            self._hold(len(parts[-1]) - inflation.wire_bytes)
            message = await loop.run_in_executor(None, b"".join, parts)
            self.release(PREFIX_BYTES)
            if receiver := self._receiver:
                self._hand_over(receiver, message)
        except Exception as error:  # whatever it is, this call's fault or ours
            self._connection.fail(self, error)
            return
        self._is_delivering = False
        self.deliver()

    @property
    def _holds_part(self) -> bool:
        """Whether something has come that was not handed over."""
        return self._assembler is not None and self._assembler.held_bytes > 0

    def _hold(self, size: int) -> None:
        """Count bytes as in flight. Raises MessageError if they are too many."""
        if not self._connection.bounds.take(size, self.owner):
            self._connection.count("max_bytes_in_flight")
            raise MessageError(StatusCode.RESOURCE_EXHAUSTED, TOO_MUCH)
        self._held += size

    def _hand_over(self, receiver: Received, message: bytes | None) -> None:
        self._receiver = None
        self.until_s = 0.0
        receiver(message)

    def _expire(self) -> None:
        if not self._ended:
            self.end(StatusCode.DEADLINE_EXCEEDED, _DEADLINE)
            self.leave()
