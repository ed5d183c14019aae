"""Requests that a frontend relays to the shard of their model: gRPC calls, HTTP requests, streams."""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import grpc
from tritonclient.grpc import service_pb2

from tidegate_proxy.base.outcome import RequestFailed
from tidegate_proxy.frontends import frames
from tidegate_proxy.frontends.frames import MAX_INLINE_BYTES, STREAM_METHOD, FrameType
from tidegate_proxy.frontends.shard_connection import ShardConnection, failure_in
from tidegate_proxy.messages.passed_through import PassedThrough
from tidegate_proxy.messages.wire import last_string
from tidegate_proxy.servers.http.interface import NAMES_EXTENSION, Message, Receive, Scope, Send
from tidegate_proxy.transport import RpcCall

if TYPE_CHECKING:
    from tidegate_proxy.frontends.frontend import Frontend


class RelayedCall:
    """gRPC call for one shard, whose frames arrive in `take`."""

    __slots__ = ("_call", "_first", "_number", "_shard", "_shards")

    def __init__(self, shards: "Frontend", call: RpcCall, request_timeout_s: float | None) -> None:
        self._shards = shards
        self._call = call
        self._shard: ShardConnection | None = None
        self._first: bytes | None = None
        """Its first message, until it begins."""
        self._number = 0
        call.add_disconnect_callback(self._gone)
        if call.method == STREAM_METHOD:
            self.again()
        else:
            call.receive(self._received_first, request_timeout_s)

    def take(self, kind: int, payload: bytes) -> None:
        """Handle a frame from the shard."""
        if kind == FrameType.ANSWER:
            self._over()
            self._call.answer(payload)
        elif kind == FrameType.END:
            self._over()
            self.fail(failure_in(payload))
        elif kind == FrameType.SEND:
            self._call.send(payload, self._sent)
        elif kind == FrameType.WANT:
            self._call.receive(self._received)
        elif kind == FrameType.RELEASE:
            self._call.release(frames.size_of(payload))

    def fail(self, failure: RequestFailed) -> None:
        """End the call with a status."""
        self._call.end(failure.code, failure.details, failure.reason)

    def again(self) -> None:
        """Begin again, at the shard that has its model now."""
        self._shard = None
        if not self._call.gone:
            model = last_string(self._first or b"") if self._shards.are_several else ""
            self._shards.find(model, self._begin, self.fail)

    def _begin(self, shard: ShardConnection) -> None:
        call, message = self._call, self._first
        if call.gone:
            return
        self._shard = shard
        self._number = shard.begin(self)
        if not self._number:  # it was answered, or will be
            return
        self._first = None
        inline = message if message is not None and len(message) <= MAX_INLINE_BYTES else None
        opening = frames.call(call.method, call.peer(), call.metadata, call.remaining_s(), inline)
        shard.send(FrameType.CALL, self._number, opening)
        if message is not None and inline is None:
            shard.send(FrameType.MESSAGE, self._number, message)
        elif message is None and call.method != STREAM_METHOD:
            shard.send(FrameType.CLOSED, self._number)

    def _over(self) -> None:
        if self._shard:
            self._shard.over(self._number)

    def _received_first(self, message: bytes | None) -> None:
        """The first message; None: there is none."""
        self._first = message
        self.again()

    def _received(self, message: bytes | None) -> None:
        """A further message; None: there is none."""
        if not self._shard:
            return
        if message is None:
            self._shard.send(FrameType.CLOSED, self._number)
        else:
            self._shard.send(FrameType.MESSAGE, self._number, message)

    def _sent(self, _nothing: object) -> None:
        if self._shard:
            self._shard.send(FrameType.TAKEN, self._number)

    def _gone(self) -> None:
        if not self._shard:
            return
        if self._number:
            self._shard.over(self._number)
            self._shard.send(FrameType.GONE, self._number)
        else:
            self._shard.forget(self)


_PASSED_ON: Final = ("method", "path", "raw_path", "query_string", "root_path", "scheme", "http_version")


class ShardLost(Exception):
    """Error: the shard was lost while a request was in flight, or was not connected."""

    def __init__(self, failure: RequestFailed) -> None:
        super().__init__(failure.details)
        self.reason = failure.reason
        """Value of `tidegate-reason`."""


@dataclass(eq=False, repr=False)
class RelayedExchange:
    """HTTP request and its response."""

    _shards: "Frontend"
    _model: str
    """Model of the request, or ""."""
    _scope: Scope
    _receive: Receive
    _send: Send
    is_page: bool = field(kw_only=True, default=False)
    """Whether it is for the metrics endpoint."""

    def __post_init__(self) -> None:
        self._shard: ShardConnection | None = None
        self._number = 0
        self._body: bytes | None = None
        self._incoming: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        """Frames from the shard that were not handled yet."""
        self._wanted = asyncio.Semaphore(0)
        """Parts of the body that the shard asks for."""
        self._client_left = False
        self._failure: RequestFailed | None = None
        """Why it is not answered."""
        self.has_answer = False
        """Whether a part of the response was sent to the client."""

    async def run(self) -> None:
        """Relay the request, and the response back. Raises ShardLost."""
        self._body = await self._short_body()
        if self._client_left:
            return
        self.again()
        reading = asyncio.get_running_loop().create_task(self._read(self._body is not None))
        try:
            await self._answer()
        finally:
            reading.cancel()
            if self._shard:
                self._shard.forget(self)
                self._shard.over(self._number)

    def again(self) -> None:
        """Begin again, at the shard that has its model now."""
        self._shard = None
        self._shards.find(self._model, self._begin, self.fail)

    def _begin(self, shard: ShardConnection) -> None:
        if self._client_left or self._failure:
            return
        self._shard = shard
        self._number = shard.begin(self)
        if self._number:
            shard.send(FrameType.ASK, self._number, frames.encode((scope_of(self._scope), self._body, self.is_page)))

    def take(self, kind: int, payload: bytes) -> None:
        """Handle a frame from the shard."""
        self._incoming.put_nowait((kind, payload))

    def fail(self, failure: RequestFailed) -> None:
        """Handle the loss of the shard."""
        self._failure = failure
        self._incoming.put_nowait((0, b""))

    async def _short_body(self) -> bytes | None:
        """The whole body where it is said to be short; None where the shard asks for it part by part."""
        length = next((value for name, value in self._scope["headers"] if name == b"content-length"), None)
        if length is None:
            is_chunked = any(name == b"transfer-encoding" for name, _ in self._scope["headers"])
            return None if is_chunked else b""
        if not length.isdigit() or int(length) > MAX_INLINE_BYTES:
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
        """Pass the body on when asked, and report that the client left."""
        while not is_whole:
            await self._wanted.acquire()
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._leave()
                return
            is_whole = not message.get("more_body", False)
            self._tell(FrameType.BODY_END if is_whole else FrameType.BODY, message.get("body", b""))
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        self._client_left = True
        self._tell(FrameType.GONE)
        self._incoming.put_nowait((FrameType.GONE, b""))

    def _tell(self, kind: FrameType, payload: bytes = b"") -> None:
        if self._shard and self._number:
            self._shard.send(kind, self._number, payload)

    async def _answer(self) -> None:
        while True:
            kind, payload = await self._incoming.get()
            if kind == FrameType.WANT:
                self._wanted.release()
            elif kind == FrameType.START:
                self.has_answer = True
                start = frames.start_of(payload)
                head: Message = {"type": "http.response.start", "status": start.status, "headers": start.headers}
                await self._send(head)
            elif kind == FrameType.PART:
                await self._send({"type": "http.response.body", "body": payload, "more_body": True})
                self._tell(FrameType.TAKEN)
            elif kind == FrameType.LAST:
                await self._send({"type": "http.response.body", "body": payload})
                return
            elif self._client_left:
                return
            else:
                raise ShardLost(self._failure) if self._failure else ConnectionError("the shard broke the answer off")


def scope_of(scope: Scope) -> dict[str, Any]:
    """Return the part of ASGI's scope that a shard gets."""
    kept = {name: scope[name] for name in _PASSED_ON if name in scope}
    return kept | {
        "client": scope.get("client"),
        "headers": scope["headers"],
        NAMES_EXTENSION: scope.get(NAMES_EXTENSION),
    }


_OK = grpc.StatusCode.OK


class RelayedStream:
    """Stream of a client. Its messages are read one at a time, each when the shard has taken the one before.

    A request whose shard is lost gets an error of its own, as in Triton's streams; if a shard is lost at which the
    stream has begun, its requests in flight cannot be identified, and the stream ends.
    """

    def __init__(self, shards: "Frontend", call: RpcCall) -> None:
        self._shards = shards
        self._call = call
        self._parts: dict[ShardConnection, _Part] = {}
        self._outbox: deque[tuple[_Part | None, bytes]] = deque()
        """Answers that wait until the client has taken those before, and the shard to notify then."""
        self._is_sending = False
        self._client_done = False
        self._end: RequestFailed | None = None
        """Status with which it ends once no request is in flight."""
        if shard := shards.any_shard():  # which knows of it then, and ends it when all ends
            self._begin_at(shard, None)
        call.add_disconnect_callback(self._gone)
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
            part.shard.send(FrameType.CLOSED, part.number)
        self._end_if_done()

    def _send_on(self, message: bytes) -> None:
        def then(shard: ShardConnection) -> None:
            part = self._parts.get(shard) or self._begin_at(shard, message)
            if part:
                part.pass_on(message)

        self._shards.find(last_string(message), then, lambda failure: self.refuse(message, failure))

    def _begin_at(self, shard: ShardConnection, message: bytes | None) -> "_Part | None":
        part = _Part(self, self._call, shard)
        if not part.begin(message):
            return None  # it is answered, or will be
        self._parts[shard] = part
        return part

    def passed_on(self) -> None:
        """Continue with the next message, as the last one was sent."""
        self._read()

    def again(self, message: bytes) -> None:
        """Send the message again whose shard was lost."""
        if not self._call.gone and self._end is None:
            self._send_on(message)

    def refuse(self, message: bytes, failure: RequestFailed) -> None:
        """Answer a request that no shard can take."""
        refused = service_pb2.ModelStreamInferResponse(error_message=failure.details)
        refused.infer_response.id = PassedThrough.of(message).id
        self._call.release(len(message))
        self.answer(None, refused.SerializeToString())
        self._read()

    # Answers -----------------------------------------------------------------------------------------------------

    def answer(self, part: "_Part | None", message: bytes) -> None:
        """Send a message to the client."""
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
            part.shard.send(FrameType.TAKEN, part.number)
        self._send()

    # Its end -----------------------------------------------------------------------------------------------------

    def part_ended(self, part: "_Part", how: RequestFailed) -> None:
        """Handle the end of a shard's part."""
        self._parts.pop(part.shard, None)
        if how.code is not _OK and not part.shard.is_leaving:
            self.fail(how)
        else:  # what it had to say is said; further requests find another shard, or the same when it is back
            self._end_if_done()

    def lose(self, part: "_Part") -> None:
        """Handle the loss of a shard that has received no message of this stream."""
        self._parts.pop(part.shard, None)
        self._end_if_done()

    def fail(self, failure: RequestFailed) -> None:
        """End the stream after the pending responses."""
        if self._end is None:
            self._end = failure
            self._leave_parts()
            self._end_if_done()

    def _end_if_done(self) -> None:
        if self._parts or self._outbox or self._is_sending or not (self._client_done or self._end):
            return
        if self._end:
            self._call.end(self._end.code, self._end.details, self._end.reason)
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
    """The stream at one shard."""

    def __init__(self, stream: RelayedStream, call: RpcCall, shard: ShardConnection) -> None:
        self.shard = shard
        self.number = 0
        self._stream = stream
        self._call = call
        self._wants = False
        self._is_used = False
        """Whether it has been given any message."""
        self._message: bytes | None = None
        """Message to send when the shard can take it."""

    def begin(self, message: bytes | None) -> bool:
        """Whether it could, for this message; else the client gets an error, now or when the shard is back."""
        self._message = message
        self.number = self.shard.begin(self)
        if self.number:
            call = self._call
            opening = frames.call(call.method, call.peer(), call.metadata, call.remaining_s(), None)
            self.shard.send(FrameType.CALL, self.number, opening)
        return bool(self.number)

    def pass_on(self, message: bytes) -> None:
        """The next message for this shard."""
        self._message = message
        if self._wants:
            self._give()

    def _give(self) -> None:
        assert self._message is not None, "it is there"
        message, self._message, self._wants, self._is_used = self._message, None, False, True
        self.shard.send(FrameType.MESSAGE, self.number, message)
        self._stream.passed_on()

    def take(self, kind: int, payload: bytes) -> None:
        """Handle a frame from the shard."""
        if kind == FrameType.SEND:
            self._stream.answer(self, payload)
        elif kind == FrameType.WANT:
            self._wants = True
            if self._message is not None:
                self._give()
        elif kind == FrameType.RELEASE:
            self._call.release(frames.size_of(payload))
        elif kind == FrameType.END:
            self.shard.over(self.number)
            self.number = 0
            message, self._message = self._message, None
            self._stream.part_ended(self, failure_in(payload))
            if message is not None:
                self._stream.again(message)

    def fail(self, failure: RequestFailed) -> None:
        """The shard is lost, or was not there."""
        begun, self.number = bool(self.number), 0
        if self._is_used:
            self._stream.fail(failure)
            return
        if begun:
            self._stream.lose(self)
        if self._message is not None:
            self._stream.refuse(self._message, failure)

    def again(self) -> None:
        """The shard was away."""
        if self._message is not None:
            self._stream.again(self._message)

    def leave(self) -> None:
        """Give it up: no client waits for it."""
        if self.number:
            self.shard.over(self.number)
            self.shard.send(FrameType.GONE, self.number)
        else:
            self.shard.forget(self)
