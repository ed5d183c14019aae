"""Requests of a frontend's clients on the side of the shard: gRPC calls and HTTP requests."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import grpc

from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.outcome import own_fault
from tidegate_proxy.frontends import frames
from tidegate_proxy.frontends.frames import CallOpening, FrameType, HttpOpening
from tidegate_proxy.servers.http.interface import NAMES_EXTENSION, Application, Message, Scope
from tidegate_proxy.transport import RpcCall
from tidegate_proxy.transport.client_bounds import TOO_MUCH

if TYPE_CHECKING:
    from tidegate_proxy.frontends.shard import FrontendLink


_OK: Final = grpc.StatusCode.OK


class RemoteCall(RpcCall):
    """gRPC call of a frontend's client; the frontend enforces deadline and message limits."""

    __slots__ = (
        "_comes",
        "_deadline_s",
        "_held",
        "_line",
        "_messages",
        "_number",
        "_peer",
        "_receiver",
        "_sent",
        "_sent_all",
    )

    def __init__(
        self, line: "FrontendLink", number: int, opening: CallOpening, remaining_s: float | None, *, comes: bool
    ) -> None:
        """Create the remote call. `comes`: whether the first message is sent without being requested.

        `number`: of the call on the link; `remaining_s`: seconds until the client's deadline, None: none.
        """
        super().__init__(opening.method, opening.metadata)
        self._peer = opening.peer
        self._line = line
        self._number = number
        self._deadline_s = None if remaining_s is None else line.now_s() + remaining_s
        self._comes = comes
        """Whether its next message is on its way."""
        self._messages: deque[bytes] = deque()
        """Messages that arrived and were not read."""
        self._sent_all = False
        self._receiver: Callable[[bytes | None], None] | None = None
        self._sent: Callable[[object], None] | None = None
        self._held = 0

    def peer(self) -> str:
        """Address of the client, as gRPC writes it."""
        return self._peer

    def remaining_s(self) -> float | None:
        """Return the seconds until the client's deadline, at least 0; None without a deadline."""
        return None if self._deadline_s is None else max(0.0, self._deadline_s - self._line.now_s())

    def receive(self, then: Callable[[bytes | None], None], within_s: float | None = None) -> None:
        """Call `then` with the next message, or with None when the client sends no more. One at a time."""
        self._receiver = then
        if self._messages or self._sent_all:
            asyncio.get_running_loop().call_soon(self._deliver)
        elif not self._comes:
            self._comes = True
            self._line.send(FrameType.WANT, self._number)

    def release(self, size: int) -> None:
        """Release `size` received bytes."""
        size = min(size, self._held)
        self._held -= size
        self._line.bounds.give_back(size, self.owner)
        if size and not self._ended:
            self._line.send(FrameType.RELEASE, self._number, frames.size(size))

    def answer(self, message: bytes) -> None:
        """End a unary call with its response."""
        if not self._ended:
            self._end()
            self._line.send(FrameType.ANSWER, self._number, message)

    def send(self, message: bytes, then: Callable[[object], None]) -> None:
        """Send one message of a stream; `then` is called, with an unused argument, when the next may be sent."""
        if not self._ended:
            self._sent = then
            self._line.send(FrameType.SEND, self._number, message)

    def end(self, code: grpc.StatusCode = _OK, details: str = "", reason: str = "") -> None:
        """End a call without a further message. Only the first end of a call counts.

        `reason`: the `tidegate-reason`; empty: none.
        """
        if not self._ended:
            self._end()
            self._line.send(FrameType.END, self._number, frames.status(code.value[0], details, reason))

    # For its link ------------------------------------------------------------------------------------------------

    def came(self, message: bytes) -> None:
        """Add the next message."""
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
        """Note that there is no further message."""
        self._sent_all = True
        self._deliver()

    def taken(self) -> None:
        """Handle the notice that sent data was forwarded."""
        then, self._sent = self._sent, None
        if then:
            then(None)

    def cut_off(self, code: grpc.StatusCode, details: str) -> None:
        """End the call, whatever its state."""
        if not self._ended:
            self.end(code, details)
            self._leave()

    def leave(self) -> None:
        """Handle a client that cancelled, or whose frontend is lost."""
        if self._ended:
            return
        self._end()
        self._leave()

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


_DISCONNECTED: Final[Message] = {"type": "http.disconnect"}


class RemoteExchange:
    """HTTP request and its response: ASGI's `receive` and `send`, over frames."""

    def __init__(self, line: "FrontendLink", number: int, ask: HttpOpening) -> None:
        self.scope: Scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, **ask.scope}
        client = self.scope.get("client")
        self.scope["client"] = tuple(client) if client else None
        self.scope["headers"] = [(bytes(name), bytes(value)) for name, value in self.scope["headers"]]
        if names := self.scope.get(NAMES_EXTENSION):
            self.scope[NAMES_EXTENSION] = [bytes(name) for name in names]
        self._line = line
        self._number = number
        self._body = ask.body
        """The next part of the body, if it is here."""
        self._is_whole = ask.body is not None
        """Whether no part comes after that one."""
        self._is_read = False
        """Whether the last part was given to the application."""
        self._gone = asyncio.Event()
        self._waiting: asyncio.Future[None] | None = None
        """Resolved when a part has come, or the last that was sent is taken."""
        self._start: Message | None = None
        """The head of the response, which leaves with the first of its body."""
        self._ended = False

    async def run(self, application: Application) -> None:
        """Answer the request by an application."""
        try:
            await application(self.scope, self._receive, self._send)
        finally:
            if not self._ended:  # the application broke off: so does the client's connection
                self._finish()
                self._line.send(FrameType.GONE, self._number)

    async def _receive(self) -> Message:
        if self._gone.is_set():
            return _DISCONNECTED
        if self._is_read:
            await self._gone.wait()
            return _DISCONNECTED
        if self._body is None:
            self._line.send(FrameType.WANT, self._number)
            await self._wait()
            if self._body is None:
                return _DISCONNECTED
        body, self._body = self._body, None
        self._is_read = self._is_whole
        return {"type": "http.request", "body": body, "more_body": not self._is_whole}

    async def _send(self, message: Message) -> None:
        if self._gone.is_set() or self._ended:
            return
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self._start is not None:
            start, self._start = self._start, None
            self._line.send(
                FrameType.START,
                self._number,
                frames.encode((start["status"], [tuple(pair) for pair in start["headers"]])),
            )
        body: bytes = message.get("body", b"")
        if message.get("more_body", False):
            if body:
                self._line.send(FrameType.PART, self._number, body)
                await self._wait()
        else:
            self._line.send(FrameType.LAST, self._number, body)
            self._finish()

    async def _wait(self) -> None:
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting

    def _finish(self) -> None:
        self._ended = True
        self._gone.set()
        self._line.over(self._number)

    # For its link ------------------------------------------------------------------------------------------------

    def came(self, body: bytes, *, is_last: bool) -> None:
        """Add the next part of the body."""
        self._body, self._is_whole = body, is_last
        self.taken()

    def taken(self) -> None:
        """Handle the notice that sent data was forwarded."""
        if self._waiting and not self._waiting.done():
            self._waiting.set_result(None)

    def leave(self) -> None:
        """Handle a client that cancelled, or whose frontend is lost."""
        self._ended = True
        self._gone.set()
        self.taken()
