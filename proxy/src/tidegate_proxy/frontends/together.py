"""What concerns several homes, asked of all of them and answered as if they were one server, over gRPC and HTTP."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final

import grpc
from tritonclient.grpc import service_pb2

from tidegate_proxy.base.faults import faults
from tidegate_proxy.base.outcome import Outcome, RequestFailed, answer_in, own_fault
from tidegate_proxy.frontends.home_line import HomeLine, no_home
from tidegate_proxy.frontends.relayed import scope_of
from tidegate_proxy.observability.exposition import families_of, merged
from tidegate_proxy.servers.http.compression import TooLarge
from tidegate_proxy.servers.http.exchange import ClientLeft, Exchange
from tidegate_proxy.servers.http.forward import HttpAnswers
from tidegate_proxy.servers.http.infer_response import error, failure
from tidegate_proxy.servers.http.interface import Answer, Receive, Scope, Send
from tidegate_proxy.servers.http.routes import Route
from tidegate_proxy.service.control import HEALTH, STATISTICS
from tidegate_proxy.service.fan_out import VERBS, ControlCall, FanOut, GrpcAnswers
from tidegate_proxy.transport.client_bounds import TOO_MUCH, Bounds, TooMuchInFlight
from tidegate_proxy.transport.interface import Call
from tidegate_proxy.tritons.backend import CANCEL_AFTER_S, SERVICE

OF_ONE_MODEL: Final = frozenset(SERVICE + name for name in ("ModelInfer", "ModelReady", "ModelMetadata", "ModelConfig"))
"""Methods whose message names a model, first of all."""
_LOAD, _UNLOAD = SERVICE + "RepositoryModelLoad", SERVICE + "RepositoryModelUnload"
_MODEL_IN: Final[dict[str, Callable[[bytes], str]]] = {
    _LOAD: lambda message: service_pb2.RepositoryModelLoadRequest.FromString(message).model_name,
    _UNLOAD: lambda message: service_pb2.RepositoryModelUnloadRequest.FromString(message).model_name,
    SERVICE + "TraceSetting": lambda message: service_pb2.TraceSettingRequest.FromString(message).model_name,
}
"""Methods whose message names a model elsewhere, or none."""
_VERBS: Final = {SERVICE + verb.method: verb for verb in VERBS}
_SERVING: Final = b"\x08\x01"


class _OverGrpc(GrpcAnswers[HomeLine]):
    async def ask(self, triton: HomeLine, question: ControlCall) -> Outcome:
        return await triton.ask(question)


class Together:
    """Lives in the event loop of a front."""

    def __init__(self, homes: Sequence[HomeLine], home_of: Callable[[str], HomeLine | None]) -> None:
        """`home_of`: the home that is asked for a model; None: none has it."""
        self._homes = homes
        self._home_of = home_of
        self._fan_out = FanOut(homes, _OverGrpc())

    def respond(
        self, call: Call, message: bytes | None, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    ) -> None:
        """Answer a client's call that is none of `OF_ONE_MODEL`, in a task that ends a while after the client left."""
        if message is None:
            call.end(grpc.StatusCode.INTERNAL, "no message was received")
            return

        async def answer() -> None:
            try:
                asked = ControlCall(call.method, message, call.metadata, call.remaining_s())
                call.answer(await self._answer(asked))
            except RequestFailed as failure:
                call.end(failure.code, failure.details, failure.refusal)
            except Exception as error:  # one call's fault must not end the front
                faults.report("a call", error)
                failed = own_fault()
                call.end(failed.code, failed.details, failed.refusal)

        work = spawn(answer())

        def cancel() -> None:
            asyncio.get_running_loop().call_later(CANCEL_AFTER_S, work.cancel)

        call.when_gone(cancel)

    async def _answer(self, call: ControlCall) -> bytes:
        """The answer, or RequestFailed is raised."""
        if not any(home.alive for home in self._homes):
            raise no_home()
        return answer_in(await self._outcome(call))

    async def _outcome(self, call: ControlCall) -> Outcome:
        if call.method == STATISTICS:
            return await self._fan_out.statistics(call)
        if call.method == HEALTH:
            answers = await self._fan_out.all_of(call)
            return next((answer for answer in answers if answer == _SERVING), answers[0])
        if model_in := _MODEL_IN.get(call.method):
            try:
                model = model_in(call.message)
            except ValueError:  # the home has words for it
                model = ""
            if home := self._home_of(model):
                return await home.ask(call)
            if call.method == _LOAD:  # a model that no home has yet is loaded by the first whose Tritons know it
                done = await self._fan_out.first_done(call)
                return no_home() if done is None else done
        if verb := _VERBS.get(call.method):
            return await self._fan_out.answer(verb, call)
        return await next(home for home in self._homes if home.alive).ask(call)


_OK: Final = 200
_LOAD_ROUTE: Final = "/v2/repository/models/{model}/load"
_STATISTICS_ROUTES: Final = frozenset({"/v2/models/stats", "/v2/models/{model}/stats"})
_VERB_OF_ROUTE: Final = {route: verb for verb in VERBS for route in verb.routes}
NO_LIVE_PAGE: Final = (
    "the live page is one scheduler's, and here are several homes: what each says is at /metrics, /shadow and /canary, "
    "and `tidegate page` shows what a home has recorded (`record`)"
)
ScopeAndBody = tuple[dict[str, Any], bytes]
"""ASGI's scope, as homes are told it, and the body."""


class _OverHttp(HttpAnswers[HomeLine, ScopeAndBody]):
    async def ask(self, triton: HomeLine, question: ScopeAndBody) -> Answer:
        return await _ask(triton, *question)


class TogetherHttp:
    """Lives in the event loop of a front."""

    def __init__(self, homes: Sequence[HomeLine], home_of: Callable[[str], HomeLine | None]) -> None:
        """`home_of`: the home that is asked for a model; None: none has it."""
        self._homes = homes
        self._home_of = home_of
        self._fan_out = FanOut(homes, _OverHttp())

    def answers(self, method: str, route: Route | None) -> bool:
        """Whether a request concerns more than one home; else the home of its model answers, or any."""
        if route is None:
            return False
        if route.pattern in _STATISTICS_ROUTES:
            return True
        verb = _VERB_OF_ROUTE.get((method, route.pattern))
        return verb is not None and not (route.model and self._home_of(route.model))

    async def respond(
        self, route: Route, scope: Scope, receive: Receive, send: Send, limit: int, bounds: Bounds
    ) -> None:
        """Answer a client's request that does. `limit`: of its body, in bytes; `bounds`: what clients hold here."""
        exchange = Exchange(scope, receive, send)
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

    async def _answer(self, method: str, route: Route, question: ScopeAndBody) -> Answer:
        if not any(home.alive for home in self._homes):
            return failure(no_home())
        if route.pattern in _STATISTICS_ROUTES:
            return await self._fan_out.statistics(question)
        if route.pattern == _LOAD_ROUTE:  # a model that no home has yet is loaded by the first whose Tritons know it
            done = await self._fan_out.first_done(question)
            return failure(no_home()) if done is None else done
        return await self._fan_out.answer(_VERB_OF_ROUTE[method, route.pattern], question)

    async def page(self, scope: dict[str, Any]) -> Answer:
        """A metrics page, or a document, of several homes together: what is one home's is told by its number."""
        path = scope["raw_path"]
        if (path + b"/").startswith(b"/live/"):
            return error(404, NO_LIVE_PAGE)
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # what is made of several answers is made of their bodies
        alive = [home for home in self._homes if home.alive]
        if not alive:
            return failure(no_home())
        answers = {home.number: await _ask(home, scope, b"", is_page=True) for home in alive}
        given = {number: answer for number, answer in answers.items() if answer.status == _OK}
        first = next(iter((given or answers).values()))
        if not given:
            return first
        if path == b"/models":
            rows = [{**row, "home": number} for number, answer in given.items() for row in json.loads(answer.body)]
            return replace(first, body=json.dumps(sorted(rows, key=lambda row: row["name"])).encode())
        if path != b"/metrics":
            told = {str(number): json.loads(answer.body) for number, answer in given.items()}
            return replace(first, body=json.dumps({"homes": told}).encode())
        families = [
            replace(family, samples=[sample.labelled("home", str(number)) for sample in family.samples])
            for number, answer in given.items()
            for family in families_of(answer.body.decode(errors="replace"))
        ]
        return replace(first, body="".join(map(str, merged(families))).encode())


async def _ask(home: HomeLine, scope: dict[str, Any], body: bytes, *, is_page: bool = False) -> Answer:
    try:
        answer = await home.ask_over_http(scope, body, is_page=is_page)
    except RequestFailed as failed:
        return failure(failed)
    return replace(answer, headers=[pair for pair in answer.headers if pair[0] != b"content-length"])
