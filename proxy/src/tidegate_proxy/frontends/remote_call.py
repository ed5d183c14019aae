"""A gRPC call of a client who is connected to a front, as its home sees it."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import grpc

from tidegate_proxy.base.faults import faults
from tidegate_proxy.base.outcome import own_fault
from tidegate_proxy.frontends import frames
from tidegate_proxy.frontends.frames import Kind, Opening
from tidegate_proxy.transport.client_bounds import TOO_MUCH, Bounds
from tidegate_proxy.transport.interface import Metadata

_OK: Final = grpc.StatusCode.OK


class Line(Protocol):
    """What a call needs of the link that it came over."""

    bounds: Bounds
    now_s: Callable[[], float]

    def send(self, kind: Kind, number: int, payload: bytes = b"") -> None:
        """Send a frame."""

    def over(self, number: int) -> None:
        """The call of this number has ended."""


class RemoteCall:
    """One RPC; a `transport.Call`. Its client's deadline, messages' limits and their time are the front's to keep."""

    __slots__ = (
        "_comes",
        "_deadline_s",
        "_ended",
        "_held",
        "_line",
        "_messages",
        "_number",
        "_opening",
        "_receiver",
        "_sent",
        "_sent_all",
        "_then_gone",
        "gone",
        "method",
        "owner",
    )

    def __init__(self, line: Line, number: int, opening: Opening, remaining_s: float | None, *, comes: bool) -> None:
        """`comes`: whether its first message is sent unasked."""
        self.method = opening.method
        """Full name, such as `/inference.GRPCInferenceService/ModelInfer`."""
        self.gone = False
        """Whether the client gave up, its connection broke or its deadline passed before the call was ended."""
        self._then_gone: Callable[[], None] | None = None
        """Called once the client is gone."""
        self.owner = ""
        """Whose call it is."""
        self._line = line
        self._number = number
        self._opening = opening
        self._deadline_s = None if remaining_s is None else line.now_s() + remaining_s
        self._comes = comes
        """Whether its next message is on its way."""
        self._messages: deque[bytes] = deque()
        """What came, and nobody has asked for."""
        self._sent_all = False
        self._receiver: Callable[[bytes | None], None] | None = None
        self._sent: Callable[[object], None] | None = None
        self._held = 0
        self._ended = False

    @property
    def metadata(self) -> Metadata:
        """The client's metadata, keys in lower case."""
        return self._opening.metadata

    def when_gone(self, then: Callable[[], None]) -> None:
        """Have `then` called once the client is gone, at once where it is; not where the call has ended."""
        if self.gone:
            then()
        elif not self._ended:
            self._then_gone = then

    def peer(self) -> str:
        """The client's address, as gRPC writes it."""
        return self._opening.peer

    def remaining_s(self) -> float | None:
        """Time until the client's deadline, at least 0; None when it has none."""
        return None if self._deadline_s is None else max(0.0, self._deadline_s - self._line.now_s())

    def receive(self, then: Callable[[bytes | None], None], _within_s: float | None = None) -> None:
        """Have `then` called with the next message, or with None when the client sends no more. One at a time."""
        self._receiver = then
        if self._messages or self._sent_all:
            asyncio.get_running_loop().call_soon(self._deliver)
        elif not self._comes:
            self._comes = True
            self._line.send(Kind.WANT, self._number)

    def release(self, size: int) -> None:
        """So many bytes of what was received are not held any more."""
        size = min(size, self._held)
        self._held -= size
        self._line.bounds.give_back(size, self.owner)
        if size and not self._ended:
            self._line.send(Kind.RELEASE, self._number, frames.size(size))

    def answer(self, message: bytes) -> None:
        """End a unary call well."""
        if not self._ended:
            self._end()
            self._line.send(Kind.ANSWER, self._number, message)

    def send(self, message: bytes, then: Callable[[object], None]) -> None:
        """Send one message of a stream; `then` is called, with something of no meaning, when the next may be sent."""
        if not self._ended:
            self._sent = then
            self._line.send(Kind.SEND, self._number, message)

    def end(self, code: grpc.StatusCode = _OK, details: str = "", reason: str = "") -> None:
        """End a call without a further message. Only the first end of a call counts."""
        if not self._ended:
            self._end()
            self._line.send(Kind.END, self._number, frames.status(code.value[0], details, reason))

    # For its link ------------------------------------------------------------------------------------------------

    def came(self, message: bytes) -> None:
        """Its next message."""
        self._comes = False
        if self._ended:
            return
        if not self._line.bounds.take(len(message), self.owner):
            self._line.bounds.count("grpc", "max_bytes_in_flight")
            self.end(grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_MUCH)
            return
        self._held += len(message)
        self._messages.append(message)
        self._deliver()

    def closed(self) -> None:
        """There is no further message."""
        self._sent_all = True
        self._deliver()

    def taken(self) -> None:
        """What was sent is on its way."""
        then, self._sent = self._sent, None
        if then:
            then(None)

    def cut_off(self, code: grpc.StatusCode, details: str) -> None:
        """End it, whatever is being done for it."""
        if not self._ended:
            self.end(code, details)
            self._leave()

    def leave(self) -> None:
        """The client gave up, or its front is no more."""
        if self._ended:
            return
        self._end()
        self._leave()

    def _leave(self) -> None:
        self.gone = True
        if self._then_gone:
            self._then_gone()
        self._then_gone = None

    def _deliver(self) -> None:
        if self._receiver and (self._messages or self._sent_all):
            then, self._receiver = self._receiver, None
            try:
                then(self._messages.popleft() if self._messages else None)
            except Exception as error:  # one call's fault must not end the link of all others
                faults.report("a call", error)
                self.cut_off(grpc.StatusCode.INTERNAL, own_fault().details)

    def _end(self) -> None:
        self._ended = True
        self._messages.clear()
        self._receiver = None
        self._line.bounds.give_back(self._held, self.owner)
        self._held = 0
        self._line.over(self._number)
