"""An HTTP request of a client, as a front passes it on to its home."""

import asyncio
from typing import Final, Protocol

from tidegate_proxy.fronts import frames
from tidegate_proxy.fronts.frames import INLINE, Kind
from tidegate_proxy.http.interface import Message, Receive, Scope, Send

_PASSED_ON: Final = ("method", "path", "raw_path", "query_string", "root_path", "scheme", "http_version")


class Line(Protocol):
    """What an exchange needs of the link to its home."""

    def send(self, kind: Kind, number: int, payload: bytes = b"") -> None:
        """Send a frame."""

    def begin(self, exchange: "RelayedExchange") -> int:
        """An exchange begins: its number."""

    def over(self, number: int) -> None:
        """The exchange of this number has ended."""


class HomeLost(Exception):
    """The home ended while a request was under way, or was not there."""

    def __init__(self, details: str, reason: str) -> None:
        """`reason`: the same in one word for the client's program."""
        super().__init__(details)
        self.reason = reason


class RelayedExchange:
    """One request and its response."""

    def __init__(self, line: Line, scope: Scope, receive: Receive, send: Send) -> None:
        self._line = line
        self._scope = scope
        self._receive = receive
        self._send = send
        self._number = 0
        self._said: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        """What the home says."""
        self._wanted = asyncio.Semaphore(0)
        """Parts of the body that the home asks for."""
        self._client_left = False
        self._failure = ("", "")
        """Why it is not answered."""
        self.has_answer = False
        """Whether the client has been sent something of its answer."""

    async def run(self) -> None:
        """Pass it on, and the answer back. Raises HomeLost."""
        body = await self._short_body()
        if self._client_left:
            return
        self._number = self._line.begin(self)
        if not self._number:
            raise HomeLost(*self._failure)
        scope = {name: self._scope[name] for name in _PASSED_ON if name in self._scope}
        scope |= {"client": self._scope.get("client"), "headers": self._scope["headers"]}
        self._line.send(Kind.ASK, self._number, frames.encode((scope, body)))
        reading = asyncio.get_running_loop().create_task(self._read(body is not None))
        try:
            await self._answer()
        finally:
            reading.cancel()
            self._line.over(self._number)

    def take(self, kind: int, payload: bytes) -> None:
        """What the home says."""
        self._said.put_nowait((kind, payload))

    def fail(self, _code: int, details: str, reason: str) -> None:
        """The home is no more."""
        self._failure = (details, reason)
        self._said.put_nowait((0, b""))

    async def _short_body(self) -> bytes | None:
        """The whole body where it is said to be short; None where the home asks for it part by part."""
        length = next((value for name, value in self._scope["headers"] if name == b"content-length"), None)
        if length is None:
            is_chunked = any(name == b"transfer-encoding" for name, _ in self._scope["headers"])
            return None if is_chunked else b""
        if not length.isdigit() or int(length) > INLINE:
            return None
        parts = []
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._client_left = True
                return None
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _read(self, is_whole: bool) -> None:
        """Pass the body on as it is asked for, and say when the client leaves."""
        while not is_whole:
            await self._wanted.acquire()
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._leave()
                return
            is_whole = not message.get("more_body", False)
            self._line.send(Kind.BODY_END if is_whole else Kind.BODY, self._number, message.get("body", b""))
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        self._client_left = True
        self._line.send(Kind.GONE, self._number)
        self._said.put_nowait((Kind.GONE, b""))

    async def _answer(self) -> None:
        while True:
            kind, payload = await self._said.get()
            if kind == Kind.WANT:
                self._wanted.release()
            elif kind == Kind.START:
                self.has_answer = True
                start = frames.start_of(payload)
                head: Message = {"type": "http.response.start", "status": start.status, "headers": start.headers}
                await self._send(head)
            elif kind == Kind.PART:
                await self._send({"type": "http.response.body", "body": payload, "more_body": True})
                self._line.send(Kind.TAKEN, self._number)
            elif kind == Kind.LAST:
                await self._send({"type": "http.response.body", "body": payload})
                return
            elif self._client_left:
                return
            else:
                raise HomeLost(*self._failure) if not kind else ConnectionError("the home broke the answer off")
