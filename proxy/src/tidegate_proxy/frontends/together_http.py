"""What concerns several homes, asked of all of them and answered as if they were one server, over HTTP."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from google.protobuf.json_format import ParseDict
from tritonclient.grpc import service_pb2

from tidegate_proxy.base.outcome import RequestFailed
from tidegate_proxy.frontends.home_line import HomeLine, no_home
from tidegate_proxy.frontends.relayed_exchange import scope_of
from tidegate_proxy.observability.exposition import families_of, merged
from tidegate_proxy.observability.merged_statistics import merge_statistics, statistics_json
from tidegate_proxy.servers.http.compression import TooLarge
from tidegate_proxy.servers.http.exchange import ClientLeft, Exchange
from tidegate_proxy.servers.http.infer_response import error, failure
from tidegate_proxy.servers.http.interface import Answer, Receive, Scope, Send
from tidegate_proxy.servers.http.routes import Route
from tidegate_proxy.servers.http.several import HttpAnswers
from tidegate_proxy.service.fan_out import VERBS, FanOut
from tidegate_proxy.transport.client_bounds import TOO_MUCH, Bounds, TooMuchInFlight

_OK: Final = 200
_LOAD: Final = "/v2/repository/models/{model}/load"
_STATISTICS: Final = frozenset({"/v2/models/stats", "/v2/models/{model}/stats"})
_VERBS: Final = {route: verb for verb in VERBS for route in verb.routes}
NO_LIVE_PAGE: Final = (
    "the live page is one scheduler's, and here are several homes: what each says is at /metrics, /shadow and /canary, "
    "and `tidegate page` shows what a home has recorded (`record`)"
)
Question = tuple[dict[str, Any], bytes]
"""ASGI's scope, as homes are told it, and the body."""


class _OfHomes(HttpAnswers[HomeLine, Question]):
    async def ask(self, triton: HomeLine, question: Question) -> Answer:
        return await _ask(triton, *question)


class TogetherHttp:
    """Lives in the event loop of a front."""

    def __init__(self, homes: Sequence[HomeLine], home_of: Callable[[str], HomeLine | None]) -> None:
        """`home_of`: the home that is asked for a model; None: none has it."""
        self._homes = homes
        self._home_of = home_of
        self._fan_out = FanOut(homes, _OfHomes())

    def answers(self, method: str, route: Route | None) -> bool:
        """Whether a request concerns more than one home; else the home of its model answers, or any."""
        if route is None:
            return False
        if route.pattern in _STATISTICS:
            return True
        verb = _VERBS.get((method, route.pattern))
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

    async def _answer(self, method: str, route: Route, question: Question) -> Answer:
        if not any(home.alive for home in self._homes):
            return failure(no_home())
        if route.pattern in _STATISTICS:
            return await self._statistics(question)
        if route.pattern == _LOAD:
            return await self._first_that_can(question)
        return await self._fan_out.answer(_VERBS[method, route.pattern], question)

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

    async def _first_that_can(self, question: Question) -> Answer:
        """A model that no home has yet is loaded by the first whose Tritons know it."""
        first: Answer | None = None
        for home in self._homes:
            if not home.alive:
                continue
            answer = await _ask(home, *question)
            if answer.status == _OK:
                return answer
            first = first or answer
        return first or failure(no_home())

    async def _statistics(self, question: Question) -> Answer:
        answers = await self._fan_out.all_of(question)
        given = [answer for answer in answers if answer.status == _OK]
        if len(given) < 2:
            return given[0] if given else answers[0]
        responses = [ParseDict(json.loads(answer.body), service_pb2.ModelStatisticsResponse()) for answer in given]
        return replace(given[0], body=statistics_json(merge_statistics(responses, {})))


async def _ask(home: HomeLine, scope: dict[str, Any], body: bytes, *, is_page: bool = False) -> Answer:
    try:
        answer = await home.ask_over_http(scope, body, is_page=is_page)
    except RequestFailed as failed:
        return failure(failed)
    return replace(answer, headers=[pair for pair in answer.headers if pair[0] != b"content-length"])
