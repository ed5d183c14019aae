"""An HTTP request of a client who is connected to a front, as its home sees it: an ASGI connection."""

import asyncio
from typing import Final, Protocol

from tidegate_proxy.frontends import frames
from tidegate_proxy.frontends.frames import Ask, Kind
from tidegate_proxy.servers.http.interface import NAMES, Application, Message, Scope

_DISCONNECTED: Final[Message] = {"type": "http.disconnect"}


class Line(Protocol):
    """What an exchange needs of the link that it came over."""

    def send(self, kind: Kind, number: int, payload: bytes = b"") -> None:
        """Send a frame."""

    def over(self, number: int) -> None:
        """The exchange of this number has ended."""


class RemoteExchange:
    """One request and its response: what ASGI calls `receive` and `send`, by frames."""

    def __init__(self, line: Line, number: int, ask: Ask) -> None:
        self.scope: Scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, **ask.scope}
        client = self.scope.get("client")
        self.scope["client"] = tuple(client) if client else None
        self.scope["headers"] = [(bytes(name), bytes(value)) for name, value in self.scope["headers"]]
        if names := self.scope.get(NAMES):
            self.scope[NAMES] = [bytes(name) for name in names]
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
        """Have it answered."""
        try:
            await application(self.scope, self._receive, self._send)
        finally:
            if not self._ended:  # the application broke off: so does the client's connection
                self._finish()
                self._line.send(Kind.GONE, self._number)

    async def _receive(self) -> Message:
        if self._gone.is_set():
            return _DISCONNECTED
        if self._is_read:
            await self._gone.wait()
            return _DISCONNECTED
        if self._body is None:
            self._line.send(Kind.WANT, self._number)
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
                Kind.START, self._number, frames.encode((start["status"], [tuple(pair) for pair in start["headers"]]))
            )
        body: bytes = message.get("body", b"")
        if message.get("more_body", False):
            if body:
                self._line.send(Kind.PART, self._number, body)
                await self._wait()
        else:
            self._line.send(Kind.LAST, self._number, body)
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
        """The next part of its body."""
        self._body, self._is_whole = body, is_last
        self.taken()

    def taken(self) -> None:
        """What was waited for is there."""
        if self._waiting and not self._waiting.done():
            self._waiting.set_result(None)

    def leave(self) -> None:
        """The client gave up, or its front is no more."""
        self._ended = True
        self._gone.set()
        self.taken()
