"""Forwarding of calls to the HTTP port of one Triton, or of all, and of their responses."""

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
from google.protobuf.json_format import ParseDict
from multidict import CIMultiDict
from tritonclient.grpc import service_pb2
from yarl import URL

from tidegate_proxy.messages.forwarded_metadata import MAX_VALUE
from tidegate_proxy.observability.model_statistics import statistics_json
from tidegate_proxy.servers.http.infer_response import error
from tidegate_proxy.servers.http.interface import Handler, Headers, HttpAnswer, HttpCall, Send
from tidegate_proxy.service.fan_out import (
    CONTROL_VERBS,
    AnyTriton,
    Changing,
    ControlVerb,
    FanOut,
    IndexRow,
    ProtocolCodec,
    Question,
    no_change_tracking,
)
from tidegate_proxy.tritons.backend import Backend

log = logging.getLogger(__name__)


CONNECT_TIMEOUT_S: Final = 5.0
_HOP_BY_HOP: Final = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade", b"expect",
    }
)  # fmt: skip
"""Headers that concern one connection only. Tidegate itself answers `Expect`."""
_OF_THE_BODY: Final = frozenset({b"content-encoding", b"content-length", b"inference-header-content-length"})
"""Headers without which a Triton reads another body than the one looked at: no client can have them dropped."""
_ADDED_BY_AIOHTTP: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


class TritonUnreachable(Exception):
    """Error: a Triton does not answer, or closed the connection without a response."""


class HttpForwarder:
    """HTTP client for Tritons. A context manager; use it only in one event loop."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._urls: dict[str, URL] = {}

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, use_dns_cache=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_ADDED_BY_AIOHTTP,
            # Answers of any size in headers are Triton's affair; a model's name may be long.
            max_line_size=1 << 20,
            max_field_size=1 << 20,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def whole(self, triton: Backend, call: HttpCall) -> HttpAnswer:
        """Forward a call and return the complete response; 503 if the Triton is unreachable."""
        try:
            async with _until_given_up(triton), self._request(triton, call, call.body) as response:
                headers = [header for header in _passed_back(response) if header[0] != b"content-length"]
                return HttpAnswer(response.status, headers, await response.read())
        except (aiohttp.ClientError, TimeoutError) as failed:
            return unreachable(triton, failed)

    async def stream(self, triton: Backend, call: HttpCall, body: bytes | AsyncIterator[bytes], send: Send) -> bool:
        """Forward a call and stream its response to the client; return whether the response was complete.

        Raises TritonUnreachable as long as nothing has been sent. A response that breaks off leaves the client's
        response incomplete, and the server library closes the connection. If the Triton is given up meanwhile, the
        call ends in the same way.
        """
        begun = False
        try:
            async with _until_given_up(triton), self._request(triton, call, body) as response:
                begun = True
                head = {"type": "http.response.start", "status": response.status, "headers": _passed_back(response)}
                await send(head)
                if call.method != "HEAD":
                    async for piece, _ in response.content.iter_chunks():
                        if piece:
                            await send({"type": "http.response.body", "body": piece, "more_body": True})
        except (aiohttp.ClientError, TimeoutError) as failed:
            if not begun:
                raise TritonUnreachable(str(failed)) from failed
            log.warning("response cut off by triton", extra={"triton": triton.http_url, "error": str(failed)})
            return False
        await send({"type": "http.response.body", "body": b""})
        return True

    def _request(
        self, triton: Backend, call: HttpCall, body: bytes | AsyncIterator[bytes]
    ) -> "aiohttp.client._RequestContextManager":
        assert self._session is not None, "use the forwarder as a context manager"
        return self._session.request(
            # To Triton HEAD is a method like any that it does not serve, but it answers with a body, which would be
            # taken for the beginning of the next answer. PUT is another such method.
            "PUT" if call.method == "HEAD" else call.method,
            self._url(triton, call),
            headers=_passed_on(call, triton),
            # As a file, large bodies are written piece by piece.
            data=io.BytesIO(body) if isinstance(body, bytes) and body else body or None,
            allow_redirects=False,
        )

    def _url(self, triton: Backend, call: HttpCall) -> URL:
        base = self._urls.get(triton.http_url)
        if base is None:
            base = self._urls[triton.http_url] = URL(triton.http_url)
        # Neither path nor query is decoded, normalized or quoted on its way.
        return URL.build(
            scheme=base.scheme,
            host=base.host or "",
            port=base.port,
            path=_text(call.path),
            query_string=_text(call.query),
            encoded=True,
        )


class _Cut:
    """Ends a call whose Triton is given up, as a gRPC call is cancelled."""

    def __init__(self, limit: asyncio.Timeout) -> None:
        self._limit = limit

    def cancel(self) -> None:
        """Have the block of the time limit end now, with TimeoutError."""
        if not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())


@asynccontextmanager
async def _until_given_up(triton: Backend) -> AsyncIterator[None]:
    """Context of a call in flight. Raises TimeoutError in it when its Triton is given up."""
    try:
        async with asyncio.timeout(None) as limit:
            cut = _Cut(limit)
            triton.open_calls.add(cut)
            try:
                yield
            finally:
                triton.open_calls.discard(cut)
    except TimeoutError as error:
        raise TimeoutError(str(error) or "it does not answer") from error


def unreachable(triton: Backend, reason: object) -> HttpAnswer:
    """Return the error response for a Triton that does not answer."""
    return error(503, f"Triton at {triton.http_url} cannot be reached: {reason}")


def _passed_on(call: HttpCall, triton: Backend) -> CIMultiDict[str]:
    values = [value for name, value in call.headers if name.lower() == b"connection"]
    named = {name.strip().lower() for value in values for name in value.split(b",")}
    dropped = (_HOP_BY_HOP | named) - _OF_THE_BODY
    passed_on = CIMultiDict(
        [
            (_text(name), _text(value.strip() if name.lower() == b"content-length" else value))
            for name, value in call.headers
            if name.lower() not in dropped and len(value) <= MAX_VALUE
        ]
    )
    passed_on.update(triton.http_headers(call.route.api))
    return passed_on


def _passed_back(response: aiohttp.ClientResponse) -> Headers:
    # aiohttp gives the bytes as they came.
    return [(name.lower(), value) for name, value in response.raw_headers if name.lower() not in _HOP_BY_HOP]


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin1")


_OK = 200


class HttpAnswers(ProtocolCodec[AnyTriton, Question, HttpAnswer]):
    """Decoder and encoder of control responses over HTTP."""

    def succeeded(self, answer: HttpAnswer) -> bool:
        """Return whether the call succeeded."""
        return answer.status == _OK

    def says_yes(self, answer: HttpAnswer) -> bool:
        """Return whether the Triton is ready or live; otherwise it answers with an error."""
        return answer.status == _OK

    def index_in(self, answer: HttpAnswer) -> Iterable[IndexRow]:
        """Return the repository index in a response."""
        rows = json.loads(answer.body)
        return [IndexRow(**{name: row[name] for name in IndexRow._fields if name in row}) for row in rows]

    def statistics_in(self, answer: HttpAnswer) -> service_pb2.ModelStatisticsResponse:
        """Return the model statistics in a response."""
        return ParseDict(json.loads(answer.body), service_pb2.ModelStatisticsResponse())

    def statistics_as(self, statistics: service_pb2.ModelStatisticsResponse, like: HttpAnswer) -> HttpAnswer:
        """Encode statistics as a response, with the headers of another one."""
        return replace(like, body=statistics_json(statistics))

    def index_as(self, index: Sequence[IndexRow], like: HttpAnswer) -> HttpAnswer:
        """Encode an index as a response, with the headers of another one."""
        return replace(like, body=index_json(index))


class HttpCodec(HttpAnswers[Backend, HttpCall]):
    """Client of a Triton's HTTP port for control calls."""

    def __init__(self, forwarder: HttpForwarder) -> None:
        self._forwarder = forwarder

    async def ask(self, triton: Backend, question: HttpCall) -> HttpAnswer:
        """Send a request to the Triton and return its response."""
        return await self._forwarder.whole(triton, question)


def index_json(index: Iterable[IndexRow]) -> bytes:
    """Encode an index as Triton's HTTP endpoint prints it."""
    rows = [{name: value for name, value in row._asdict().items() if value} for row in index]
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode()


def merged_handlers(
    tritons: Sequence[Backend], forwarder: HttpForwarder, changing: Changing[HttpCall, Any] = no_change_tracking
) -> dict[tuple[str, str], Handler]:
    """Return handlers that combine the responses of all live Tritons, by HTTP method and pattern."""
    fan_out: FanOut[Backend, HttpCall, HttpAnswer] = FanOut(tritons, HttpCodec(forwarder), changing=changing)

    def handler(verb: ControlVerb) -> Handler:
        return partial(fan_out.answer, verb)

    return {route: handler(verb) for verb in CONTROL_VERBS for route in verb.routes}
