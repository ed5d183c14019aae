"""A gRPC call of a client, as a front passes it on to the home of its model."""

from collections.abc import Callable
from typing import Protocol

from tidegate_proxy.base.outcome import RequestFailed
from tidegate_proxy.frontends import frames
from tidegate_proxy.frontends.frames import INLINE, STREAM, Kind
from tidegate_proxy.frontends.home_line import HomeLine, failure_in
from tidegate_proxy.messages.wire import first_string
from tidegate_proxy.transport.interface import Call


class Homes(Protocol):
    """What a call needs of its front."""

    are_several: bool
    """Whether it matters which model it is."""

    def find(self, model: str, then: Callable[[HomeLine], None], refuse: Callable[[RequestFailed], None]) -> None:
        """Call `then` with the home that is asked for a model, at once or later, or `refuse` with why not."""


class RelayedCall:
    """One call that is for one home. What that says of it comes to `take`."""

    __slots__ = ("_call", "_first", "_home", "_homes", "_number")

    def __init__(self, homes: Homes, call: Call, body_timeout_s: float | None) -> None:
        self._homes = homes
        self._call = call
        self._home: HomeLine | None = None
        self._first: bytes | None = None
        """Its first message, until it begins."""
        self._number = 0
        call.when_gone(self._gone)
        if call.method == STREAM:
            self.again()
        else:
            call.receive(self._received_first, body_timeout_s)

    def take(self, kind: int, payload: bytes) -> None:
        """What the home says."""
        if kind == Kind.ANSWER:
            self._over()
            self._call.answer(payload)
        elif kind == Kind.END:
            self._over()
            self.fail(failure_in(payload))
        elif kind == Kind.SEND:
            self._call.send(payload, self._sent)
        elif kind == Kind.WANT:
            self._call.receive(self._received)
        elif kind == Kind.RELEASE:
            self._call.release(frames.size_of(payload))

    def fail(self, failure: RequestFailed) -> None:
        """End it with a status."""
        self._call.end(failure.code, failure.details, failure.refusal)

    def again(self) -> None:
        """Begin, at the home that has its model now."""
        self._home = None
        if not self._call.gone:
            model = first_string(self._first or b"") if self._homes.are_several else ""
            self._homes.find(model, self._begin, self.fail)

    def _begin(self, home: HomeLine) -> None:
        call, message = self._call, self._first
        if call.gone:
            return
        self._home = home
        self._number = home.begin(self)
        if not self._number:  # it was told, or will be
            return
        self._first = None
        inline = message if message is not None and len(message) <= INLINE else None
        opening = frames.call(call.method, call.peer(), call.metadata, call.remaining_s(), inline)
        home.send(Kind.CALL, self._number, opening)
        if message is not None and inline is None:
            home.send(Kind.MESSAGE, self._number, message)
        elif message is None and call.method != STREAM:
            home.send(Kind.CLOSED, self._number)

    def _over(self) -> None:
        if self._home:
            self._home.over(self._number)

    def _received_first(self, message: bytes | None) -> None:
        """The first message; None: there is none."""
        self._first = message
        self.again()

    def _received(self, message: bytes | None) -> None:
        """A further message; None: there is none."""
        if not self._home:
            return
        if message is None:
            self._home.send(Kind.CLOSED, self._number)
        else:
            self._home.send(Kind.MESSAGE, self._number, message)

    def _sent(self, _nothing: object) -> None:
        if self._home:
            self._home.send(Kind.TAKEN, self._number)

    def _gone(self) -> None:
        if not self._home:
            return
        if self._number:
            self._home.over(self._number)
            self._home.send(Kind.GONE, self._number)
        else:
            self._home.forget(self)
