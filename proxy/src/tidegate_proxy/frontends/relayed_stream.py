"""A stream of inferences, as a front passes it on: to each home whose models it names, a stream of its own."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

import grpc
from tritonclient.grpc import service_pb2

from tidegate_proxy.base.outcome import RequestFailed
from tidegate_proxy.frontends import frames
from tidegate_proxy.frontends.frames import Kind
from tidegate_proxy.frontends.home_line import HomeLine, failure_in
from tidegate_proxy.messages.request import PassedThrough
from tidegate_proxy.messages.wire import first_string
from tidegate_proxy.transport.interface import Call

_OK = grpc.StatusCode.OK


class Homes(Protocol):
    """What a stream needs of its front."""

    def any_home(self) -> HomeLine | None:
        """The first that may be asked."""

    def find(self, model: str, then: Callable[[HomeLine], None], refuse: Callable[[RequestFailed], None]) -> None:
        """Call `then` with the home that is asked for a model, at once or later, or `refuse` with why not."""


class RelayedStream:
    """One stream of a client. Its messages are read one at a time, each when the home of the one before has taken it.

    A request whose home is lost is answered with an error of its own, as Triton does in streams; where a home is lost
    that the stream has begun at, what was under way there cannot be told apart, and the stream ends.
    """

    def __init__(self, homes: Homes, call: Call) -> None:
        self._homes = homes
        self._call = call
        self._parts: dict[HomeLine, _Part] = {}
        self._outbox: deque[tuple[_Part | None, bytes]] = deque()
        """Answers that wait until the client has taken those before, and the home that is told when it has."""
        self._is_sending = False
        self._client_done = False
        self._end: RequestFailed | None = None
        """How it ends once nothing is under way."""
        if home := homes.any_home():  # which knows of it then, and ends it when all ends
            self._begin_at(home, None)
        call.when_gone(self._gone)
        self._read()

    # Requests ----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        if not self._call.gone and self._end is None:
            self._call.receive(self._received)

    def _received(self, message: bytes | None) -> None:
        if message is not None:
            self._send_on(message)
            return
        self._client_done = True
        for part in self._parts.values():
            part.home.send(Kind.CLOSED, part.number)
        self._end_if_done()

    def _send_on(self, message: bytes) -> None:
        def then(home: HomeLine) -> None:
            part = self._parts.get(home) or self._begin_at(home, message)
            if part:
                part.pass_on(message)

        self._homes.find(first_string(message), then, lambda failure: self.refuse(message, failure))

    def _begin_at(self, home: HomeLine, message: bytes | None) -> "_Part | None":
        part = _Part(self, self._call, home)
        if not part.begin(message):
            return None  # it is told, or will be
        self._parts[home] = part
        return part

    def passed_on(self) -> None:
        """The message that was read last is on its way: the next one may come."""
        self._read()

    def again(self, message: bytes) -> None:
        """A message whose home was away: now it may be there."""
        if not self._call.gone and self._end is None:
            self._send_on(message)

    def refuse(self, message: bytes, failure: RequestFailed) -> None:
        """A request goes to no home."""
        refused = service_pb2.ModelStreamInferResponse(error_message=failure.details)
        refused.infer_response.id = PassedThrough.of(message).id
        self._call.release(len(message))
        self.answer(None, refused.SerializeToString())
        self._read()

    # Answers -----------------------------------------------------------------------------------------------------

    def answer(self, part: "_Part | None", message: bytes) -> None:
        """A message to the client."""
        self._outbox.append((part, message))
        if not self._is_sending:
            self._send()

    def _send(self) -> None:
        if self._outbox:
            self._is_sending = True
            part, message = self._outbox.popleft()
            self._call.send(message, lambda _nothing: self._sent(part))
        else:
            self._is_sending = False
            self._end_if_done()

    def _sent(self, part: "_Part | None") -> None:
        if part and part.number:
            part.home.send(Kind.TAKEN, part.number)
        self._send()

    # Its end -----------------------------------------------------------------------------------------------------

    def part_ended(self, part: "_Part", how: RequestFailed) -> None:
        """A home has ended its part."""
        self._parts.pop(part.home, None)
        if how.code is not _OK and not part.home.is_leaving:
            self.fail(how)
        else:  # what it had to say is said; further requests find another home, or the same when it is back
            self._end_if_done()

    def lose(self, part: "_Part") -> None:
        """A home is lost that had nothing of it."""
        self._parts.pop(part.home, None)
        self._end_if_done()

    def fail(self, failure: RequestFailed) -> None:
        """End it, after the answers that are there."""
        if self._end is None:
            self._end = failure
            self._leave_parts()
            self._end_if_done()

    def _end_if_done(self) -> None:
        if self._parts or self._outbox or self._is_sending or not (self._client_done or self._end):
            return
        if self._end:
            self._call.end(self._end.code, self._end.details, self._end.refusal)
        else:
            self._call.end()

    def _gone(self) -> None:
        self._end = self._end or RequestFailed(grpc.StatusCode.CANCELLED, "")
        self._outbox.clear()
        self._leave_parts()

    def _leave_parts(self) -> None:
        parts, self._parts = list(self._parts.values()), {}
        for part in parts:
            part.leave()


class _Part:
    """The stream at one home."""

    def __init__(self, stream: RelayedStream, call: Call, home: HomeLine) -> None:
        self.home = home
        self.number = 0
        self._stream = stream
        self._call = call
        self._wants = False
        self._is_used = False
        """Whether it has been given any message."""
        self._message: bytes | None = None
        """What is passed on when the home wants it."""

    def begin(self, message: bytes | None) -> bool:
        """Whether it could, for this message; else that is told, now or when the home is back."""
        self._message = message
        self.number = self.home.begin(self)
        if self.number:
            call = self._call
            opening = frames.call(call.method, call.peer(), call.metadata, call.remaining_s(), None)
            self.home.send(Kind.CALL, self.number, opening)
        return bool(self.number)

    def pass_on(self, message: bytes) -> None:
        """The next message for this home."""
        self._message = message
        if self._wants:
            self._give()

    def _give(self) -> None:
        assert self._message is not None, "it is there"
        message, self._message, self._wants, self._is_used = self._message, None, False, True
        self.home.send(Kind.MESSAGE, self.number, message)
        self._stream.passed_on()

    def take(self, kind: int, payload: bytes) -> None:
        """What the home says."""
        if kind == Kind.SEND:
            self._stream.answer(self, payload)
        elif kind == Kind.WANT:
            self._wants = True
            if self._message is not None:
                self._give()
        elif kind == Kind.RELEASE:
            self._call.release(frames.size_of(payload))
        elif kind == Kind.END:
            self.home.over(self.number)
            self.number = 0
            message, self._message = self._message, None
            self._stream.part_ended(self, failure_in(payload))
            if message is not None:
                self._stream.again(message)

    def fail(self, failure: RequestFailed) -> None:
        """The home is lost, or was not there."""
        begun, self.number = bool(self.number), 0
        if self._is_used:
            self._stream.fail(failure)
            return
        if begun:
            self._stream.lose(self)
        if self._message is not None:
            self._stream.refuse(self._message, failure)

    def again(self) -> None:
        """The home was away."""
        if self._message is not None:
            self._stream.again(self._message)

    def leave(self) -> None:
        """Nobody waits for it any more."""
        if self.number:
            self.home.over(self.number)
            self.home.send(Kind.GONE, self.number)
        else:
            self.home.forget(self)
