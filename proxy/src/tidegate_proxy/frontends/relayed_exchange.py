"""An HTTP request of a client, as a front passes it on to the home of its model."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from tidegate_proxy.base.outcome import RequestFailed
from tidegate_proxy.frontends import frames
from tidegate_proxy.frontends.frames import INLINE, Kind
from tidegate_proxy.frontends.home_line import HomeLine
from tidegate_proxy.servers.http.interface import NAMES, Message, Receive, Scope, Send

_PASSED_ON: Final = ("method", "path", "raw_path", "query_string", "root_path", "scheme", "http_version")


class Homes(Protocol):
    """What an exchange needs of its front."""

    def find(self, model: str, then: Callable[[HomeLine], None], refuse: Callable[[RequestFailed], None]) -> None:
        """Call `then` with the home that is asked for a model, at once or later, or `refuse` with why not."""


class HomeLost(Exception):
    """The home ended while a request was under way, or was not there."""

    def __init__(self, failure: RequestFailed) -> None:
        super().__init__(failure.details)
        self.reason = failure.refusal
        """Says the same in one word for the client's program."""


class RelayedExchange:
    """One request and its response."""

    def __init__(
        self, homes: Homes, model: str, scope: Scope, receive: Receive, send: Send, *, is_page: bool = False
    ) -> None:
        """`model`: the one that it is about; "": none. `is_page`: whether it is for the page of the metrics."""
        self._homes = homes
        self._model = model
        self._home: HomeLine | None = None
        self._is_page = is_page
        self._scope = scope
        self._receive = receive
        self._send = send
        self._number = 0
        self._body: bytes | None = None
        self._said: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        """What the home says."""
        self._wanted = asyncio.Semaphore(0)
        """Parts of the body that the home asks for."""
        self._client_left = False
        self._failure: RequestFailed | None = None
        """Why it is not answered."""
        self.has_answer = False
        """Whether the client has been sent something of its answer."""

    async def run(self) -> None:
        """Pass it on, and the answer back. Raises HomeLost."""
        self._body = await self._short_body()
        if self._client_left:
            return
        self.again()
        reading = asyncio.get_running_loop().create_task(self._read(self._body is not None))
        try:
            await self._answer()
        finally:
            reading.cancel()
            if self._home:
                self._home.forget(self)
                self._home.over(self._number)

    def again(self) -> None:
        """Begin, at the home that has its model now."""
        self._home = None
        self._homes.find(self._model, self._begin, self.fail)

    def _begin(self, home: HomeLine) -> None:
        if self._client_left or self._failure:
            return
        self._home = home
        self._number = home.begin(self)
        if self._number:
            home.send(Kind.ASK, self._number, frames.encode((scope_of(self._scope), self._body, self._is_page)))

    def take(self, kind: int, payload: bytes) -> None:
        """What the home says."""
        self._said.put_nowait((kind, payload))

    def fail(self, failure: RequestFailed) -> None:
        """The home is no more."""
        self._failure = failure
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
            self._tell(Kind.BODY_END if is_whole else Kind.BODY, message.get("body", b""))
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        self._client_left = True
        self._tell(Kind.GONE)
        self._said.put_nowait((Kind.GONE, b""))

    def _tell(self, kind: Kind, payload: bytes = b"") -> None:
        if self._home and self._number:
            self._home.send(kind, self._number, payload)

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
                self._tell(Kind.TAKEN)
            elif kind == Kind.LAST:
                await self._send({"type": "http.response.body", "body": payload})
                return
            elif self._client_left:
                return
            else:
                raise HomeLost(self._failure) if self._failure else ConnectionError("the home broke the answer off")


def scope_of(scope: Scope) -> dict[str, Any]:
    """What of ASGI's scope a home is told."""
    told = {name: scope[name] for name in _PASSED_ON if name in scope}
    return told | {"client": scope.get("client"), "headers": scope["headers"], NAMES: scope.get(NAMES)}
