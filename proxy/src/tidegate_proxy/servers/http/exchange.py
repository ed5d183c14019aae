"""One request and its response, between the server library and the front."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tidegate_proxy.messages.forwarded_metadata import HeaderForwarding, metadata_of
from tidegate_proxy.servers.http.interface import NAMES, Answer, Call, Headers, Message, Receive, Scope, Send
from tidegate_proxy.servers.http.routes import Route
from tidegate_proxy.transport import Metadata

_LONGEST_NUMBER = 18
"""Digits that surely fit 64 bits."""
_ONCE = frozenset({b"content-encoding", b"inference-header-content-length", b"content-length", b"transfer-encoding"})


class Exchange:
    """What the front needs to know of a request's head, and the way back to the client.

    Made in the task that serves the request: that is the one which ends when the client leaves.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: bytes = scope["raw_path"]
        self.receive = receive
        self.content_length: int | None = None
        self.content_encodings: list[bytes] = []
        """All that are given: which of them counts, only Triton knows."""
        self.accept_encoding = b""
        self.json_length: int | None = None
        """The Inference-Header-Content-Length."""
        self.odd = False
        """Whether the head holds something that only Triton can interpret as Triton does."""
        self.client_left = False
        self.status = 0
        """The status of the response, once it is sent."""
        self.owner = ""
        """Whose request it is, once the front has found out."""
        self.hold: Callable[[int], None] = lambda _size: None
        """Told of every so many bytes that are made of the body; may raise."""
        self.body_error: Exception | None = None
        """Why the body could not be passed on to its end."""
        self._peer: tuple[str, int] | None = scope.get("client")
        self._query: bytes = scope["query_string"]
        self._headers: Headers = scope["headers"]
        names: list[bytes] = scope.get(NAMES) or [name for name, _ in self._headers]
        self._written: Headers = [(name, value) for name, (_, value) in zip(names, self._headers, strict=True)]
        """The same with their names as the client wrote them."""
        """As they came. Blanks behind a value are not a part of it (RFC 9110, section 5.5), but Triton keeps them."""
        self._send = send
        self._task = asyncio.current_task()
        self._watch: asyncio.Task[None] | None = None
        self.started = False
        """Whether the client has been sent something of its answer."""
        self._answered = False
        self._read_headers()

    def _read_headers(self) -> None:
        seen = set()
        for name, raw in self._headers:
            value = raw.strip(b" \t")
            if name == b"accept-encoding":
                self.accept_encoding = self.accept_encoding or value
            elif name in _ONCE:
                self.odd |= name in seen
                seen.add(name)
                if name == b"content-encoding":
                    self.content_encodings.append(value)
                elif name == b"transfer-encoding":
                    self.odd |= value != b"chunked"
                elif not value.isdigit() or len(value) > _LONGEST_NUMBER:
                    self.odd = True
                elif name == b"content-length":
                    self.content_length = int(value)
                else:
                    self.json_length = int(value)
        if b"transfer-encoding" in seen:
            # The chunks say where the body ends (RFC 9112, section 6.3), here and to whom it is passed on.
            self.content_length = None
            self._drop(frozenset({b"content-length"}))

    def header(self, name: str) -> str | None:
        """A header by its lower-case name: the first one, as for Triton."""
        wanted = name.encode()
        return next((value.decode("latin1") for key, value in self._headers if key == wanted), None)

    def peer(self) -> str:
        """The connection that it came by."""
        return "{}:{}".format(*self._peer) if self._peer else ""

    @property
    def content_encoding(self) -> bytes:
        """The encoding of the body; b"" where none is given."""
        return self.content_encodings[-1] if self.content_encodings else b""

    @property
    def metadata(self) -> Metadata:
        """The headers that go along with an inference, whichever way it goes on."""
        return metadata_of(self._headers)

    def call(self, body: bytes, route: Route) -> Call:
        """The request as handlers and Tritons see it."""
        return Call(self.method, self.path, self._query, self._written, body, route)

    def first_headers(self) -> dict[str, str]:
        """The headers by their names; of those that are repeated the first, which is the one that Triton looks at."""
        return {name.decode("latin1"): value.strip(b" \t").decode("latin1") for name, value in reversed(self._headers)}

    def hide(self, names: frozenset[str]) -> None:
        """Headers that are nobody else's business: they do not go on to a Triton."""
        if names:
            self._drop(frozenset(name.encode("latin1") for name in names))

    def _drop(self, names: frozenset[bytes]) -> None:
        self._headers = [pair for pair in self._headers if pair[0] not in names]
        self._written = [pair for pair in self._written if pair[0].lower() not in names]

    def may_reach_model(self, forwarding: HeaderForwarding) -> bool:
        """Whether some Triton may make a header of it a parameter of its inference."""
        return any(forwarding.may_forward(name.decode("latin1")) for name, _ in self._written)

    def watch(self) -> None:
        """From now on, with the body read, end the task when the client leaves."""
        self._watch = asyncio.get_running_loop().create_task(self._cancel_when_client_leaves())

    def end_watch(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.cancel()

    async def send(self, message: Message) -> None:
        """Send a part of the response."""
        self.started = True
        self.status = message.get("status", self.status)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._answered = True
        await self._send(message)

    async def reply(self, answer: Answer) -> None:
        """Send a whole response; its length is added."""
        self.started = True
        headers = [*answer.headers, (b"content-length", str(len(answer.body)).encode())]
        await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})
        self._answered = True
        await self._send({"type": "http.response.body", "body": answer.body})

    @asynccontextmanager
    async def replying(self, answer: Answer) -> AsyncIterator[None]:
        """Send a whole response, but end it only with the block: until then the client may go on sending."""
        self.started = True
        headers = [*answer.headers, (b"content-length", str(len(answer.body)).encode())]
        await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": answer.body, "more_body": True})
        try:
            yield
        finally:
            self._answered = True
            await self._send({"type": "http.response.body", "body": b""})

    async def _cancel_when_client_leaves(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        if not self._answered:  # afterwards the server library says "disconnect" too
            self.client_left = True
            assert self._task is not None
            self._task.cancel()
