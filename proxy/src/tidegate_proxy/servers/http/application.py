"""HTTP server as one ASGI application: inference is scheduled, every other call is forwarded to a Triton."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Final, Self

from tritonclient.grpc import service_pb2

from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.outcome import RequestFailed
from tidegate_proxy.messages.model_signature import ModelSignature
from tidegate_proxy.messages.passed_through import PassedThrough
from tidegate_proxy.messages.request import InferenceRequest, NotSchedulable
from tidegate_proxy.rollout.versions import VersionRollouts, end_of_http
from tidegate_proxy.servers.http import compression, infer_request, infer_response, routes
from tidegate_proxy.servers.http.compression import TooLarge
from tidegate_proxy.servers.http.exchange import ClientLeft, HttpExchange, RequestBody
from tidegate_proxy.servers.http.forward import HttpForwarder, TritonUnreachable, merged_handlers, unreachable
from tidegate_proxy.servers.http.interface import (
    Guard,
    Handler,
    HttpAnswer,
    HttpCall,
    HttpLimits,
    Message,
    Owner,
    Receive,
    Scope,
    Send,
)
from tidegate_proxy.servers.http.json_data import RefusedRequest
from tidegate_proxy.servers.http.json_worker_pool import JsonWorkerPool
from tidegate_proxy.servers.http.screening import SHARED_MEMORY_CHANGES, RequestScreen, why_not_changed
from tidegate_proxy.servers.http.slots import HttpSlots
from tidegate_proxy.service.fan_out import MODEL_CHANGES, Changing, no_change_tracking
from tidegate_proxy.service.inference import Inference
from tidegate_proxy.service.passthrough import NO_SEQUENCE, Routing, SequencePosition
from tidegate_proxy.transport.client_bounds import ClientBounds, TooMuchInFlight
from tidegate_proxy.tritons.backend import Backend

_OK: Final = 200
_STREAMED_FROM: Final = 1 << 20
"""Bodies of this size are passed on while they come; smaller ones are read first."""
_COMPRESSED_ASIDE: Final = 1 << 16
"""Bodies of this size are compressed and decompressed in a thread, so that other clients do not wait."""
_HEAR_OUT_S: Final = 1.0
"""How long a client may go on sending a body that is refused, so that it comes to read why."""


EnvelopeForSlot = Callable[[PassedThrough, HttpExchange], InferenceRequest | None]
"""Returns an inference of a model with slots as the driver schedules it; None for other models."""


class HttpApplication:
    """ASGI application with every route of Triton's HTTP service. A context manager, which holds its connections.

    `routing` chooses a Triton for unscheduled requests. `scheduled(model, exchange)` returns the signature of a
    scheduled model, None for others. `overrides(method, route)` returns a handler that answers instead of a Triton, if
    any; it takes precedence over combined responses of all Tritons. `guard` may reject a request before its body is
    read; `hidden` returns the names of headers meant for it. `owner` returns the client of a request. `passed_through`
    is called for every inference that a Triton answered. `refuses_shared_memory`: whether tensors there are rejected.
    `changing` surrounds calls that load or unload a model. `versions` chooses versions.
    """

    def __init__(
        self,
        tritons: Sequence[Backend],
        routing: Routing,
        inference: Inference,
        scheduled: Callable[[str, HttpExchange], ModelSignature | None],
        *,
        overrides: Callable[[str, routes.Route], Handler | None] = lambda _method, _route: None,
        guard: Guard | None = None,
        hidden: Callable[[], frozenset[str]] = frozenset,
        owner: Owner = lambda _header, _peer: "",
        limits: HttpLimits | None = None,
        passed_through: Callable[..., None] | None = None,
        refuses_shared_memory: Callable[[], bool] = bool,
        bounds: ClientBounds | None = None,
        changing: Changing[HttpCall, Backend] = no_change_tracking,
        envelope_for_slot: EnvelopeForSlot = lambda _request, _exchange: None,
        versions: VersionRollouts | None = None,
    ) -> None:
        self._versions = versions
        self._routing = routing
        self._inference = inference
        self._scheduled = scheduled
        self._forwarder = HttpForwarder()
        self._slots = HttpSlots(inference, routing, self._forwarder)
        self._envelope_for_slot = envelope_for_slot
        self._aside = JsonWorkerPool()
        self._tritons = tritons
        self._merged = merged_handlers(tritons, self._forwarder, changing)
        self._overrides = overrides
        self._guard = guard
        self._hidden = hidden
        self._owner = owner
        self._passed_through = passed_through
        self._refuses_shared_memory = refuses_shared_memory
        self._limit = (limits or HttpLimits()).body_bytes
        self._bounds = bounds or ClientBounds()

    async def __aenter__(self) -> Self:
        await self._forwarder.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._aside.close()
        await self._forwarder.__aexit__(kind, raised, trace)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        assert scope["type"] == "http", "the server is configured to speak nothing else"
        exchange = HttpExchange(scope, receive, send)
        body = exchange.body(self._limit, self._bounds)
        try:
            route = routes.match(exchange.path)
            if refusal := self._guard and self._guard(route.api if route else None, exchange.first_headers()):
                headers = [(name.encode(), value.encode()) for name, value in refusal.headers]
                await exchange.reply(HttpAnswer(refusal.status, headers, refusal.body))
            else:
                exchange.belongs_to(self._owner(exchange.header, exchange.peer))
                exchange.hide(self._hidden())
                await self._answer(exchange, body, route)
        except TooLarge:
            words = f"the request's body exceeds the maximum of {self._limit} bytes"
            await _refuse(exchange, body, 413, words)
        except RefusedRequest as refused:
            json_error = infer_response.error(refused.status, str(refused))
            await exchange.reply(replace(json_error, headers=infer_response.JSON_HEADERS))
        except TooMuchInFlight:
            await _refuse(exchange, body, 429, "too many bytes of requests are in flight (limits.max_bytes_in_flight)")
        except ClientLeft:
            pass
        except asyncio.CancelledError:
            # The client left, or the server stops.
            if not exchange.client_left and not exchange.started:
                await exchange.reply(infer_response.error(503, "Tidegate is shutting down"))
        except Exception as error:
            faults.report("answering over HTTP", error)
            if not exchange.started:  # otherwise the server library closes the connection
                await exchange.reply(infer_response.error(500, "internal error of Tidegate; its log says more"))
        finally:
            exchange.end_watch()
            body.close()

    async def _answer(self, exchange: HttpExchange, body: RequestBody, route: routes.Route | None) -> None:
        is_inference = route is not None and exchange.method == "POST" and route.pattern in routes.INFERENCE_PATHS
        if route and is_inference and self._inference.is_on_demand(route.model):
            await body.read_ahead()  # a slow one must not arrive after its model is evicted again
            exchange.watch()
            if self._inference.must_load(route.model):
                try:
                    await self._inference.load(route.model, None, exchange.owner)
                except RequestFailed as failed:
                    await exchange.reply(infer_response.failure(failed))
                    return
        if route and is_inference and self._versions and self._versions.of_model and not route.version:
            await self._infer_version(exchange, body, route, self._versions)
        else:
            await self._answer_route(exchange, body, route, is_inference=is_inference)

    async def _infer_version(
        self, exchange: HttpExchange, body: RequestBody, route: routes.Route, versions: VersionRollouts
    ) -> None:
        """Answer an inference that names no version, by the version that its model's rollout chooses."""
        is_whole = route.pattern == routes.INFER_PATH
        chosen = versions.choose(route.model, exchange.owner, is_compared=is_whole)
        if chosen is None:
            await self._answer_route(exchange, body, route, is_inference=True)
            return
        exchange.path = routes.with_version(exchange.path, chosen.version)
        copies = versions if is_whole and versions.wants_copy(route.model) else None
        route = replace(route, version=chosen.version)
        await self._answer_route(exchange, body, route, is_inference=True, copies=copies)
        chosen.ended(end_of_http(exchange.status, is_rejected=exchange.is_rejected))

    async def _answer_route(
        self,
        exchange: HttpExchange,
        body: RequestBody,
        route: routes.Route | None,
        *,
        is_inference: bool,
        copies: VersionRollouts | None = None,
    ) -> None:
        """Answer a request. `copies`: gets a copy of it."""
        if route is None:
            await self._forward(exchange, body, routes.NO_ROUTE)
        elif (
            route.pattern == routes.INFER_PATH
            and exchange.method == "POST"
            and (known := self._scheduled(route.model, exchange))
        ):
            await self._infer(exchange, body, known, route, copies)
        elif route.pattern in SHARED_MEMORY_CHANGES and exchange.method == "POST":
            await self._change_regions(exchange, await body.whole(), route)
        elif handler := self._handler(exchange.method, route):
            call = exchange.call(await body.whole(), route)
            exchange.watch()
            await self._screened(exchange, call.body)
            await exchange.reply(await handler(call))
        else:
            await self._forward(exchange, body, route, is_inference=is_inference, copies=copies)

    async def _change_regions(self, exchange: HttpExchange, content: bytes, route: routes.Route) -> None:
        exchange.watch()
        await self._screened(exchange, content)
        if words := why_not_changed(route, content):
            await exchange.reply(replace(infer_response.error(400, words), headers=infer_response.JSON_HEADERS))
        elif handler := self._handler(exchange.method, route):
            await exchange.reply(await handler(exchange.call(content, route)))
        else:
            await self._pass_on(exchange, content, route, is_inference=False)

    def _handler(self, method: str, route: routes.Route) -> Handler | None:
        """Return the local handler of a request, if any. Responses are merged only if there are several Tritons."""
        key = (method, route.pattern)
        is_merged = len(self._tritons) > 1 or key in MODEL_CHANGES
        return self._overrides(method, route) or (self._merged.get(key) if is_merged else None)

    async def _infer(
        self,
        exchange: HttpExchange,
        body: RequestBody,
        signature: ModelSignature,
        route: routes.Route,
        copies: VersionRollouts | None,
    ) -> None:
        content = await body.whole()
        exchange.watch()
        try:
            message, form = await self._translate(exchange, content, signature, route.version)
            if copies:
                copies.copy(route.model, message)
                copies = None
            answer = await self._inference.infer(message, None, exchange.metadata, exchange.owner)
        except NotSchedulable as why:
            if words := self._inference.why_not_bypassed(route.model, str(why)):
                await exchange.reply(infer_response.error(400, words))
                return
            if copies:
                copies.copy(route.model, partial(self._as_message, exchange, content, route))
            await self._pass_on(exchange, content, route, is_inference=True)
            return
        except RequestFailed as failed:
            await exchange.reply(infer_response.failure(failed))
            return
        await exchange.reply(await self._response(exchange, answer, form))

    async def _as_message(self, exchange: HttpExchange, content: bytes, route: routes.Route) -> bytes | None:
        """Return an inference that bypassed scheduling as a message, without its headers; None if it has no such form.

        Call it while nothing waits for the answer: memory for what was compressed is not counted.
        """
        signature = self._inference.tensors_of(route.model)
        if signature is None or (not signature.max_rows and exchange.json_length == 0):
            return None  # the shape of a raw body is that of one row
        with suppress(NotSchedulable, RefusedRequest, TooLarge):
            message, _ = await self._translate(exchange, content, signature, route.version, hold=_hold_nothing)
            return message
        return None

    async def _translate(
        self,
        exchange: HttpExchange,
        content: bytes,
        signature: ModelSignature,
        version: str,
        hold: Callable[[int], None] | None = None,
    ) -> tuple[bytes, infer_request.ResponseForm]:
        """Return an inference as a message. `hold`: see `_plain`. Raises NotSchedulable, RefusedRequest, TooLarge."""
        if exchange.odd:
            raise NotSchedulable("a header is repeated, or is no number")
        content = await self._plain(exchange, content, hold)
        json_bytes = len(content) if exchange.json_length is None else exchange.json_length
        if json_bytes > len(content):
            raise NotSchedulable("less body than JSON")
        may_bypass = not self._inference.is_split(signature.model)
        return await self._aside.translate(
            signature, version, content, json_bytes, exchange.owner, may_bypass=may_bypass
        )

    async def _response(self, exchange: HttpExchange, answer: bytes, form: infer_request.ResponseForm) -> HttpAnswer:
        try:
            rendered = await self._aside.render(answer, form, exchange.owner)
        except RefusedRequest as refused:
            return infer_response.error(refused.status, str(refused))
        headers, pieces = rendered.headers(), rendered.pieces
        if exchange.accept_encoding and (encoding := compression.response_encoding(exchange.accept_encoding)):
            headers.append((b"content-encoding", encoding))
            if sum(map(len, pieces)) < _COMPRESSED_ASIDE:
                return HttpAnswer(200, headers, compression.compress(pieces, encoding))
            return HttpAnswer(200, headers, await asyncio.to_thread(compression.compress, pieces, encoding))
        return HttpAnswer(200, headers, b"".join(pieces))

    async def _forward(
        self,
        exchange: HttpExchange,
        body: RequestBody,
        route: routes.Route,
        *,
        is_inference: bool = False,
        copies: VersionRollouts | None = None,
    ) -> None:
        # A sequence's id may stand at the end, and a slot is not for a client that is still sending.
        whole = is_inference and (
            copies is not None or self._routing.looks_inside(route.model) or self._inference.waits_for_slot(route.model)
        )
        beginning = await (body.whole() if whole else body.beginning(_STREAMED_FROM))
        if body.complete:
            exchange.watch()
            if copies:
                copies.copy(route.model, partial(self._as_message, exchange, beginning, route))
            await self._pass_on(exchange, beginning, route, is_inference=is_inference)
        else:
            pieces = _then_watched(exchange, body.pieces(beginning))
            await self._pass_on(exchange, pieces, route, is_inference=is_inference)

    async def _pass_on(
        self, exchange: HttpExchange, body: bytes | AsyncIterator[bytes], route: routes.Route, *, is_inference: bool
    ) -> None:
        """`is_inference`: it is counted."""
        call, model, tries = exchange.call(b"", route), route.model, 0
        inside: tuple[SequencePosition, service_pb2.ModelInferRequest | None] = (NO_SEQUENCE, None)
        if is_inference:
            inside = await self._inside(exchange, body, model)
        body = await self._screened(exchange, body, is_inference=is_inference)
        request = PassedThrough(model, route.version, 1, *inside[0])
        if isinstance(body, bytes) and is_inference and (envelope := self._envelope_for_slot(request, exchange)):
            await self._slots.forward(exchange, call, body, request, envelope)
            return
        if is_inference and (rejected := self._routing.why_over_limit(exchange.owner)):
            await exchange.reply(infer_response.failure(rejected))
            return
        sent_ns = tried_ns = time.monotonic_ns()
        is_answered = is_counted = False

        def count(*, ok: bool) -> None:
            if self._passed_through and is_inference:
                self._passed_through(model, route.version, inside[0], sent_ns=sent_ns, ok=ok)

        async def count_first(message: Message) -> None:
            nonlocal is_counted
            if not is_counted and message["type"] == "http.response.body" and message.get("body"):
                is_counted = True
                count(ok=exchange.status == _OK)
            await exchange.send(message)

        # A stream counts with its first response, as in a slot.
        send = count_first if is_inference and self._inference.waits_for_slot(model) else exchange.send
        while True:
            routing = self._routing
            if is_inference:
                triton = routing.route_http_inference(model, *inside)
            else:
                triton = routing.route(model, "http", route.api)
            triton.passes(model)
            try:
                is_complete = await self._forwarder.stream(triton, call, body, send)
                is_answered = is_complete and exchange.status == _OK
                if is_inference and is_answered:
                    routing.took(triton, model, tried_ns)
                break
            except TritonUnreachable as failed:
                if exchange.body_error is not None:
                    raise exchange.body_error from failed
                await routing.unreachable(triton, str(failed))
                tries, tried_ns = tries + 1, time.monotonic_ns()
                again = is_inference and isinstance(body, bytes) and routing.may_try_again(triton, model, tries)
                if not again:
                    await exchange.reply(unreachable(triton, failed))
                    break
            finally:
                triton.passed(model)
        if not is_counted:
            count(ok=is_answered)

    async def _inside(
        self, exchange: HttpExchange, body: bytes | AsyncIterator[bytes], model: str
    ) -> tuple[SequencePosition, service_pb2.ModelInferRequest | None]:
        """The sequence that an inference is of, and what it says of its tensors, where either matters."""
        if isinstance(body, bytes) and self._routing.looks_inside(model):
            with suppress(NotSchedulable):  # Triton will say what is wrong with it
                plain = await self._plain(exchange, body)
                json_bytes = len(plain) if exchange.json_length is None else exchange.json_length
                return await self._aside.outline(plain[:json_bytes], exchange.owner)
        return NO_SEQUENCE, None

    async def _plain(self, exchange: HttpExchange, content: bytes, hold: Callable[[int], None] | None = None) -> bytes:
        """A body as it was before it was compressed. Raises NotSchedulable for an unknown encoding, TooLarge.

        `hold`: counts bytes held after decompression; None: for the exchange.
        """
        hold = hold or exchange.hold
        if exchange.content_encoding in compression.COMPRESSED_ENCODINGS:
            if len(content) < _COMPRESSED_ASIDE:
                return compression.decompress(content, self._limit, hold)
            return await asyncio.to_thread(compression.decompress, content, self._limit, hold)
        if exchange.content_encoding not in (b"", b"identity"):
            raise NotSchedulable("an unknown encoding")
        return content

    async def _screened(
        self, exchange: HttpExchange, body: bytes | AsyncIterator[bytes], *, is_inference: bool = False
    ) -> bytes | AsyncIterator[bytes]:
        """The body, of which nothing that a Triton would act on leaves before it was looked at. Raises Refused."""
        screen = RequestScreen(
            is_inference=is_inference,
            refuses=self._refuses_shared_memory(),
            json_bytes=None if exchange.odd else exchange.json_length,
            encodings=exchange.content_encodings,
            limit=self._limit,
        )
        if isinstance(body, bytes):
            await _look(screen, body)
            return body
        return _looked_at(screen, body, exchange)


def _hold_nothing(_size: int) -> None:
    """Count no bytes."""


async def _look(screen: RequestScreen, piece: bytes) -> None:
    if screen.takes_time and len(piece) >= _COMPRESSED_ASIDE:
        await asyncio.to_thread(screen.look, piece)
    else:
        screen.look(piece)


async def _looked_at(
    screen: RequestScreen, pieces: AsyncIterator[bytes], exchange: HttpExchange
) -> AsyncIterator[bytes]:
    async for piece in pieces:
        try:
            await _look(screen, piece)
        except (RefusedRequest, TooLarge) as error:
            exchange.body_failed(error)
            raise
        yield piece


async def _then_watched(exchange: HttpExchange, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async for piece in pieces:
            yield piece
    except (TooLarge, TooMuchInFlight, ClientLeft) as error:
        exchange.body_failed(error)
        raise
    exchange.watch()


async def _refuse(exchange: HttpExchange, body: RequestBody, status: int, words: str) -> None:
    """Answer before the body is there: its rest is thrown away, and for a while only."""
    body.release()
    if exchange.started:  # by a Triton that did not wait for the body either
        return
    answer = infer_response.error(status, words, (b"connection", b"close"))
    with suppress(TimeoutError):
        async with exchange.replying(answer), asyncio.timeout(_HEAR_OUT_S):
            await body.discard()
