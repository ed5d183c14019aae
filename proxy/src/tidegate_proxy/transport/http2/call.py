"""One RPC of a client: its messages in, its answers out."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from grpc import StatusCode

from tidegate_proxy.base import refusal
from tidegate_proxy.configuration.limits import LimitsConfig
from tidegate_proxy.transport.client_bounds import TOO_MUCH, Bounds
from tidegate_proxy.transport.http2.inflation import ACCEPTED_ENCODINGS, Inflation, MessageError
from tidegate_proxy.transport.http2.message import PREFIX_BYTES, Assembler, whole
from tidegate_proxy.transport.http2.metadata import Header, quoted
from tidegate_proxy.transport.http2.opening import Opening

HEADERS: Final[tuple[Header, ...]] = (
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", ACCEPTED_ENCODINGS),
)
OK: Final[tuple[Header, ...]] = ((b"grpc-status", b"0"), (b"grpc-message", b""))
OPEN_BYTES: Final = 2048
"""What a call takes while it is open beside its metadata and messages: its objects, its stream, its place in books."""
INFLATED_HERE: Final = 1 << 18
"""Bytes of a message that are inflated at once, in the event loop: some tenths of a millisecond."""
INFLATED_ASIDE: Final = 1 << 22
"""The bytes from which on a message is inflated in a thread, before what it comes to is looked at."""
_DEADLINE: Final = "Deadline Exceeded"
_REASON: Final = refusal.HEADER.encode()
Received = Callable[[bytes | None], None]


class Line(Protocol):
    """What a call needs of the connection that it came over."""

    peer: str
    limits: LimitsConfig
    bounds: Bounds
    now_s: Callable[[], float]

    @property
    def most_details(self) -> int:
        """Bytes of a status' words that the client takes."""

    def deliver_soon(self, call: "Call") -> None:
        """Hand a message over behind what is being done."""

    def begin(self, call: "Call") -> None:
        """Send the headers of an answer."""

    def answer(self, call: "Call", message: bytes) -> None:
        """Send an answer of one message."""

    def send(self, stream_id: int, message: bytes, then: Callable[[None], None] | None = None) -> None:
        """Send a message; `then` is called when the stream's reader is ready for more."""

    def end(self, call: "Call", trailers: Sequence[Header], *, is_first: bool) -> None:
        """Send a status."""

    def acknowledge(self, stream_id: int, amount: int) -> None:
        """What came on a stream was taken."""

    def fail(self, call: "Call", error: Exception) -> None:
        """A fault of Tidegate's own ends a call."""

    def break_off(self, call: "Call", error: Exception) -> None:
        """A fault of Tidegate's own met the end of a call."""

    def count(self, limit: str) -> None:
        """A limit has ended or refused something."""


class Call:
    """One RPC of a client. Its methods and callbacks are for the event loop's thread."""

    __slots__ = (
        "_assembler",
        "_began",
        "_connection",
        "_deadline",
        "_encoding",
        "_ended",
        "_held",
        "_inflating",
        "_is_delivering",
        "_receiver",
        "_then_gone",
        "_unacknowledged",
        "deadline_s",
        "gone",
        "metadata",
        "method",
        "owner",
        "sent_all",
        "stream_id",
        "until_s",
    )

    def __init__(self, connection: Line, stream_id: int, opening: Opening) -> None:
        self.method = opening.method
        """Full name, such as `/inference.GRPCInferenceService/ModelInfer`."""
        self.metadata = opening.metadata
        """The client's metadata, keys in lower case."""
        self.gone = False
        """Whether the client gave up, its connection broke or its deadline passed before the call was ended."""
        self.stream_id = stream_id
        self.deadline_s: float | None = None
        """The instant of its deadline by the event loop's clock; None: it has none."""
        self.until_s = 0.0
        """The instant by which its message has to be whole, or the rest of what its client sends, by the event loop's
        clock; 0: nothing is waited for."""
        self.sent_all = False
        """The client sends no more."""
        self.owner = ""
        self._connection = connection
        self._encoding = opening.encoding
        self._assembler: Assembler | None = None
        """What assembles messages that did not come whole."""
        self._receiver: Received | None = None
        self._is_delivering = False
        """Whether messages are being given to those who wait for them: one that is asked for meanwhile follows."""
        self._inflating: asyncio.Future[None] | None = None
        self._began = False
        self._then_gone: Callable[[], None] | None = None
        """Called once the client is gone."""
        self._ended = False
        self._unacknowledged = 0
        self._held = 0
        """Bytes of its requests that count as in flight."""
        self._deadline: asyncio.TimerHandle | None = None

    def when_gone(self, then: Callable[[], None]) -> None:
        """Have `then` called once the client is gone, at once where it is; not where the call has ended."""
        if self.gone:
            then()
        elif not self._ended:
            self._then_gone = then

    def peer(self) -> str:
        """The client's address, as gRPC writes it."""
        return self._connection.peer

    def remaining_s(self) -> float | None:
        """Time until the client's deadline, at least 0; None when it has none."""
        return None if self.deadline_s is None else max(0.0, self.deadline_s - self._connection.now_s())

    def receive(self, then: Received, within_s: float | None = None) -> None:
        """Have `then` called with the next message, or with None when the client sends no more. One at a time.

        The call ends instead where too much is in flight, or where the message is not whole in time.
        """
        self._receiver = then
        if within_s is not None:
            self.until_s = self._connection.now_s() + within_s
        if self._unacknowledged:
            self._acknowledge()
        if not self._is_delivering and (self.sent_all or self._holds_part):
            self._connection.deliver_soon(self)

    def open(self) -> None:
        """Count what it holds while it is open. Raises MessageError where that is too much."""
        if not self._ended:
            self._hold(OPEN_BYTES + sum(len(key) + len(value) for key, value in self.metadata))

    def release(self, size: int) -> None:
        """So many bytes of what was received are not held any more."""
        size = min(size, self._held)
        self._held -= size
        self._connection.bounds.give_back(size, self.owner)

    def answer(self, message: bytes) -> None:
        """End a unary call well."""
        if not self._ended:
            self.release(self._held)
            self._ended = True
            try:
                self._connection.answer(self, message)
            except Exception as error:
                self._connection.break_off(self, error)

    def send(self, message: bytes, then: Callable[[object], None]) -> None:
        """Send one message of a stream; `then` is called, with something of no meaning, when the next may be sent."""
        if not self._ended:
            if not self._began:
                self._connection.begin(self)
                self._began = True
            self._connection.send(self.stream_id, message, then)

    def end(self, code: StatusCode = StatusCode.OK, details: str = "", reason: str = "") -> None:
        """End a call without a further message. Only the first end of a call counts. `reason`: as `transport.Call`."""
        if self._ended:
            return
        self.drop()
        self._ended = True
        status: tuple[Header, ...] = (
            (b"grpc-status", b"%d" % code.value[0]),
            (b"grpc-message", quoted(details, self._connection.most_details)),
        )
        if reason:
            status += ((_REASON, reason.encode()),)
        try:
            self._connection.end(self, status if self._began else (*HEADERS, *status), is_first=not self._began)
        except Exception as error:
            self._connection.break_off(self, error)

    # For its connection ------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether it has its end, which may not be written yet."""
        return self._ended

    def expires_in(self, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        """End it when its client's time is up."""
        self.deadline_s = loop.time() + seconds
        self._deadline = loop.call_later(seconds, self._expire)

    def add(self, data: bytes, *, is_last: bool) -> None:
        """Take in what its client sent. Raises MessageError."""
        self.sent_all = is_last
        receiver = self._receiver
        if receiver is None and not self._ended:
            self._unacknowledged += len(data)
        else:
            self._connection.acknowledge(self.stream_id, len(data))
        if self._ended:
            return
        most_bytes = int(self._connection.limits.max_message_bytes)
        if receiver and not self._holds_part and (message := whole(data, most_bytes)) is not None:
            self._hold(len(message))
            self._hand_over(receiver, message)
            return
        if data:
            self._hold(len(data))
            if self._assembler is None:
                self._assembler = Assembler(self._encoding, most_bytes)
            self._assembler.add(data)
        if is_last or (self._assembler and self._assembler.has_message):
            self.deliver()

    def forget(self) -> None:
        """Its stream is no more."""
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
        """Forget what has come."""
        self._assembler = None
        self._acknowledge()
        self.release(self._held)
        self._receiver = None
        self.until_s = 0.0

    def leave(self) -> None:
        """The client waits no more."""
        self.gone = True
        if self._then_gone:
            self._then_gone()

    def _acknowledge(self) -> None:
        amount, self._unacknowledged = self._unacknowledged, 0
        self._connection.acknowledge(self.stream_id, amount)

    def deliver(self) -> None:
        """Give what has come to whoever waits for it: message by message, as far as they are asked for."""
        if self._is_delivering:
            return
        self._is_delivering = True
        try:
            while receiver := self._receiver:
                message = self._assembler.take() if self._assembler else None
                if isinstance(message, Inflation):
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

    async def _inflate(self, inflation: Inflation, part: bytes) -> None:
        """Go on inflating a message that turns out to be large, in threads, so that nobody else waits for it."""
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
        """Count so many bytes as in flight. Raises MessageError where they are too many."""
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
