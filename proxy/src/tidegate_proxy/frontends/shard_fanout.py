"""Requests that concern all shards: sent to each and answered as by one server, over gRPC and HTTP."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final

import grpc
from tritonclient.grpc import service_pb2

from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.outcome import Outcome, RequestFailed, answer_in, own_fault
from tidegate_proxy.frontends.frontend_side_calls import scope_of
from tidegate_proxy.frontends.shard_connection import ShardConnection, scheduler_unavailable
from tidegate_proxy.observability.exposition import families_of, merged
from tidegate_proxy.servers.http.compression import TooLarge
from tidegate_proxy.servers.http.exchange import ClientLeft, HttpExchange
from tidegate_proxy.servers.http.forward import HttpAnswers
from tidegate_proxy.servers.http.infer_response import error, failure
from tidegate_proxy.servers.http.interface import HttpAnswer, Receive, Scope, Send
from tidegate_proxy.servers.http.routes import Route, is_dashboard_path
from tidegate_proxy.service.control import HEALTH, STATISTICS_METHOD
from tidegate_proxy.service.fan_out import CONTROL_VERBS, ControlCall, FanOut, GrpcAnswers
from tidegate_proxy.transport import RpcCall
from tidegate_proxy.transport.client_bounds import TOO_MUCH, ClientBounds, TooMuchInFlight
from tidegate_proxy.tritons.backend import CANCEL_AFTER_S, SERVICE_PREFIX

OF_ONE_MODEL: Final = frozenset(
    SERVICE_PREFIX + name for name in ("ModelInfer", "ModelReady", "ModelMetadata", "ModelConfig")
)
"""Methods whose message has a model's name as its first field."""
_LOAD, _UNLOAD = SERVICE_PREFIX + "RepositoryModelLoad", SERVICE_PREFIX + "RepositoryModelUnload"
_MODEL_IN: Final[dict[str, Callable[[bytes], str]]] = {
    _LOAD: lambda message: service_pb2.RepositoryModelLoadRequest.FromString(message).model_name,
    _UNLOAD: lambda message: service_pb2.RepositoryModelUnloadRequest.FromString(message).model_name,
    SERVICE_PREFIX + "TraceSetting": lambda message: service_pb2.TraceSettingRequest.FromString(message).model_name,
}
"""Methods whose message names a model elsewhere, or none."""
_VERBS: Final = {SERVICE_PREFIX + verb.method: verb for verb in CONTROL_VERBS}
_SERVING: Final = b"\x08\x01"


class _OverGrpc(GrpcAnswers[ShardConnection]):
    async def ask(self, triton: ShardConnection, question: ControlCall) -> Outcome:
        return await triton.ask(question)


class ShardFanout:
    """Fan-out of gRPC calls to all shards, with merged responses. Call only from the event loop."""

    def __init__(self, shards: Sequence[ShardConnection], shard_of: Callable[[str], ShardConnection | None]) -> None:
        """Create the shard fanout. `shard_of`: returns the shard that serves a model, or None."""
        self._shards = shards
        self._shard_of = shard_of
        self._fan_out = FanOut(shards, _OverGrpc())

    def respond(
        self, call: RpcCall, message: bytes | None, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    ) -> None:
        """Answer a client's call that is none of `OF_ONE_MODEL`, in a task that outlives the client for a while.

        `message`: of the call, None: it had none; `spawn`: creates the task.
        """
        if message is None:
            call.end(grpc.StatusCode.INTERNAL, "no message was received")
            return

        async def answer() -> None:
            try:
                asked = ControlCall(call.method, message, call.metadata, call.remaining_s())
                call.answer(await self._answer(asked))
            except RequestFailed as failure:
                call.end(failure.code, failure.details, failure.reason)
            except Exception as error:  # one call's fault must not end the frontend
                faults.report("a call", error)
                failed = own_fault()
                call.end(failed.code, failed.details, failed.reason)

        work = spawn(answer())

        def cancel() -> None:
            asyncio.get_running_loop().call_later(CANCEL_AFTER_S, work.cancel)

        call.add_disconnect_callback(cancel)

    async def _answer(self, call: ControlCall) -> bytes:
        """The answer, or RequestFailed is raised."""
        if not any(shard.alive for shard in self._shards):
            raise scheduler_unavailable()
        return answer_in(await self._outcome(call))

    async def _outcome(self, call: ControlCall) -> Outcome:
        if call.method == STATISTICS_METHOD:
            return await self._fan_out.statistics(call)
        if call.method == HEALTH:
            answers = await self._fan_out.all_of(call)
            return next((answer for answer in answers if answer == _SERVING), answers[0])
        if model_in := _MODEL_IN.get(call.method):
            try:
                model = model_in(call.message)
            except ValueError:  # the shard has words for it
                model = ""
            if shard := self._shard_of(model):
                return await shard.ask(call)
            if call.method == _LOAD:  # a model that no shard has yet is loaded by the first whose Tritons know it
                done = await self._fan_out.first_done(call)
                return scheduler_unavailable() if done is None else done
        if verb := _VERBS.get(call.method):
            return await self._fan_out.answer(verb, call)
        return await next(shard for shard in self._shards if shard.alive).ask(call)


_OK: Final = 200
_LOAD_ROUTE: Final = "/v2/repository/models/{model}/load"
_STATISTICS_ROUTES: Final = frozenset({"/v2/models/stats", "/v2/models/{model}/stats"})
_VERB_OF_ROUTE: Final = {route: verb for verb in CONTROL_VERBS for route in verb.routes}
NO_DASHBOARD: Final = (
    "the dashboard shows one shard, and here are several shards: "
    "what each says is at /metrics, /shadow and /canary, "
    "and `tidegate view` shows what a shard has recorded (`event_log`)"
)
ScopeAndBody = tuple[dict[str, Any], bytes]
"""ASGI scope, as shards get it, and the body."""


class _OverHttp(HttpAnswers[ShardConnection, ScopeAndBody]):
    async def ask(self, triton: ShardConnection, question: ScopeAndBody) -> HttpAnswer:
        return await _ask(triton, *question)


class HttpShardFanout:
    """Fan-out of HTTP requests to all shards, with merged responses. Call only from the event loop."""

    def __init__(self, shards: Sequence[ShardConnection], shard_of: Callable[[str], ShardConnection | None]) -> None:
        """Create the HTTP shard fanout. `shard_of`: returns the shard that serves a model, or None."""
        self._shards = shards
        self._shard_of = shard_of
        self._fan_out = FanOut(shards, _OverHttp())

    def answers(self, method: str, route: Route | None) -> bool:
        """Return whether a request concerns more than one shard; if not, the shard of its model answers."""
        if route is None:
            return False
        if route.pattern in _STATISTICS_ROUTES:
            return True
        verb = _VERB_OF_ROUTE.get((method, route.pattern))
        return verb is not None and not (route.model and self._shard_of(route.model))

    async def respond(
        self, route: Route, scope: Scope, receive: Receive, send: Send, limit: int, bounds: ClientBounds
    ) -> None:
        """Answer a request that concerns several shards.

        `limit`: largest body in bytes; `bounds`: counters of bytes held for clients.
        """
        exchange = HttpExchange(scope, receive, send)
        body = exchange.body(limit, bounds)
        try:
            content = await body.whole()
            exchange.watch()
            answer = await self._answer(exchange.method, route, (scope_of(scope), content))
        except TooLarge:
            answer = error(413, f"the request's body exceeds the maximum of {limit} bytes")
        except TooMuchInFlight:
            answer = error(429, TOO_MUCH)
        except (ClientLeft, asyncio.CancelledError):
            return
        finally:
            exchange.end_watch()
            body.close()
        await exchange.reply(answer)

    async def _answer(self, method: str, route: Route, question: ScopeAndBody) -> HttpAnswer:
        if not any(shard.alive for shard in self._shards):
            return failure(scheduler_unavailable())
        if route.pattern in _STATISTICS_ROUTES:
            return await self._fan_out.statistics(question)
        if route.pattern == _LOAD_ROUTE:  # a model that no shard has yet is loaded by the first whose Tritons know it
            done = await self._fan_out.first_done(question)
            return failure(scheduler_unavailable()) if done is None else done
        return await self._fan_out.answer(_VERB_OF_ROUTE[method, route.pattern], question)

    async def page(self, scope: dict[str, Any]) -> HttpAnswer:
        """Return the metrics, or a document, of several shards together, labeled with the shard's number."""
        path = scope["raw_path"]
        if is_dashboard_path(path):
            return error(404, NO_DASHBOARD)
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # what is made of several answers is made of their bodies
        alive = [shard for shard in self._shards if shard.alive]
        if not alive:
            return failure(scheduler_unavailable())
        answers = {shard.number: await _ask(shard, scope, b"", is_page=True) for shard in alive}
        given = {number: answer for number, answer in answers.items() if answer.status == _OK}
        first = next(iter((given or answers).values()))
        if not given:
            return first
        if path == b"/models":
            rows = [{**row, "shard": number} for number, answer in given.items() for row in json.loads(answer.body)]
            return replace(first, body=json.dumps(sorted(rows, key=lambda row: row["name"])).encode())
        if path != b"/metrics":
            pages = {str(number): json.loads(answer.body) for number, answer in given.items()}
            return replace(first, body=json.dumps({"shards": pages}).encode())
        families = [
            replace(family, samples=[sample.labeled("shard", str(number)) for sample in family.samples])
            for number, answer in given.items()
            for family in families_of(answer.body.decode(errors="replace"))
        ]
        return replace(first, body="".join(map(str, merged(families))).encode())


async def _ask(shard: ShardConnection, scope: dict[str, Any], body: bytes, *, is_page: bool = False) -> HttpAnswer:
    try:
        answer = await shard.ask_over_http(scope, body, is_page=is_page)
    except RequestFailed as failed:
        return failure(failed)
    return replace(answer, headers=[pair for pair in answer.headers if pair[0] != b"content-length"])
