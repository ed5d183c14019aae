"""HTTP routes of the dashboard: the page itself, which has no data, and the data, which are access-controlled."""

import asyncio
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from typing import Final, Protocol
from urllib.parse import parse_qs

import msgspec

from tidegate_proxy.app.dashboard.latency_explanation import LatencyExplanation
from tidegate_proxy.app.dashboard.snapshot import PageHello
from tidegate_proxy.app.dashboard.viewers import TooMany, Viewers
from tidegate_proxy.servers.http.exchange import HttpExchange
from tidegate_proxy.servers.http.infer_response import error
from tidegate_proxy.servers.http.interface import Headers, HttpAnswer
from tidegate_proxy.servers.http.routes import DASHBOARD_PATH


def _part(name: str, package: str = __package__) -> str:
    return files(package).joinpath(name).read_text("utf-8")


_STYLE: Final = _part("style.css", "tidegate.report") + _part("uplot/uPlot.min.css") + _part("page.css")
"""The colors and tables of reports, the chart library's style, and what only this page has."""
_SCRIPTS: Final = (
    "uplot/uPlot.min.js",
    "tables.js",
    "rollout.js",
    "charts.js",
    "drawing.js",
    "timeline.js",
    "page.js",
)
_SCRIPT: Final = "".join(map(_part, _SCRIPTS))


def _digest(text: str) -> str:
    return b64encode(sha256(text.encode()).digest()).decode()


CONTENT_SECURITY_POLICY: Final = (
    f"default-src 'none'; script-src 'sha256-{_digest(_SCRIPT)}'; style-src 'sha256-{_digest(_STYLE)}'; "
    "connect-src 'self'; img-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy of the page: only this script and this server.

Names that clients choose are text, never markup; if one became markup, nothing in it would run.
"""
PAGE_HEADERS: Final[Headers] = [
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
]


@lru_cache(maxsize=1)
def document() -> bytes:
    """Return the page."""
    return _part("page.html").replace("/*STYLE*/", _STYLE).replace("/*SCRIPT*/", _SCRIPT).encode()


_DATA: Final = (
    b"/dashboard/hello",
    b"/dashboard/events",
    b"/dashboard/timeline",
    b"/dashboard/what-if",
    b"/dashboard/at",
    b"/dashboard/history",
)
_JSON: Final[Headers] = [
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
]
_EVENTS: Final[Headers] = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-accel-buffering", b"no"),
]
PAGE_REQUEST_HEADER: Final = "x-tidegate-page"
"""Request header that other sites cannot send without CORS consent, which is never given."""
_LONGEST_NUMBER: Final = 18


class DashboardSource(Protocol):
    """Interface of the sources of the dashboard: a running process or a recorded run."""

    def hello(self) -> PageHello:
        """Return the first message to the page."""

    async def timeline(self, request_id: int) -> LatencyExplanation | None:
        """Return the timeline of a request, or None if it is unknown or forgotten."""

    async def what_if(self, at_ms: int | None) -> object:
        """Return a what-if analysis as JSON; `at_ms`: up to this time of a recorded run.

        Raises ValueError if it is not possible.
        """

    def at(self, at_ms: int) -> object:
        """Return the snapshot at an instant of a recorded run. Raises ValueError for other sources."""

    def history(self, since: int) -> object:
        """Return the series over time, from point number `since` on if the source has that point."""


Refusal = Callable[[Mapping[str, str]], HttpAnswer | None]
"""Function that returns why a request with these headers may not read the data, or None."""


class LivePage:
    """Handler of the dashboard's routes. Use it only in one event loop."""

    def __init__(self, shown: DashboardSource, viewers: Viewers | None, refusal: Refusal) -> None:
        """Prepare the routes. `viewers`: receivers of every tick; None for a source that does not change."""
        self._shown = shown
        self._viewers = viewers
        self._refusal = refusal
        self._encoder = msgspec.json.Encoder()
        self._telling = asyncio.Lock()
        self._simulating = asyncio.Lock()

    async def close(self) -> None:
        """Stop observing."""
        if self._viewers:
            await self._viewers.close()

    async def answer(self, exchange: HttpExchange, query: bytes) -> None:
        """Answer a request for a path of the dashboard."""
        wanted = "POST" if exchange.path == b"/dashboard/what-if" else "GET"
        if exchange.path == DASHBOARD_PATH:
            if exchange.method in ("GET", "HEAD"):
                await exchange.reply(HttpAnswer(200, list(PAGE_HEADERS), document()))
            else:
                await exchange.reply(error(405, "this is read with GET", (b"allow", b"GET, HEAD")))
        elif exchange.path not in _DATA:
            await exchange.reply(error(404, f"the dashboard is at {DASHBOARD_PATH.decode()}"))
        elif refused := self._refused(exchange):
            await exchange.reply(refused)
        elif exchange.method != wanted:
            await exchange.reply(error(405, f"this is asked with {wanted}", (b"allow", wanted.encode())))
        elif exchange.path == b"/dashboard/events":
            await self._events(exchange)
        else:
            await exchange.reply(await self._data(exchange.path, query))

    def _refused(self, exchange: HttpExchange) -> HttpAnswer | None:
        if exchange.header(PAGE_REQUEST_HEADER) is None:
            return error(403, f"the data are for the page itself: send the header {PAGE_REQUEST_HEADER}: 1")
        return self._refusal(exchange.first_headers())

    async def _data(self, path: bytes, query: bytes) -> HttpAnswer:
        try:
            match path:
                case b"/dashboard/hello":
                    data: object = self._shown.hello()
                case b"/dashboard/at":
                    data = await asyncio.to_thread(self._shown.at, _number(query, b"ms"))
                case b"/dashboard/history":
                    data = self._shown.history(_number(query, b"since") if b"since=" in query else 0)
                case b"/dashboard/what-if":
                    data = await self._what_if(_number(query, b"ms") if b"ms=" in query else None)
                case _:
                    data = await self._timeline(query)
        except _NotKnown as unknown:
            return error(404, str(unknown))
        except _Busy as busy:
            return error(429, str(busy))
        except ValueError as wrong:
            return error(400, str(wrong))
        return HttpAnswer(200, list(_JSON), self._encoder.encode(data))

    async def _timeline(self, query: bytes) -> LatencyExplanation:
        request_id = _number(query, b"request")
        async with self._telling:  # one after the other: each takes the event loop's time
            timeline = await self._shown.timeline(request_id)
        if timeline is None:
            words = (
                "is not in this recording: their numbers are in the order of arrival"
                if self._viewers is None
                else "is not known, or no more: timelines cover requests that arrived while the page was open, for a "
                "minute; `tidegate serve --event-log` keeps them for good"
            )
            raise _NotKnown(f"request {request_id} {words}")
        return timeline

    async def _what_if(self, at_ms: int | None) -> object:
        if self._simulating.locked():
            raise _Busy("another what-if analysis is in progress: ask again in a few seconds")
        async with self._simulating:
            return await self._shown.what_if(at_ms)

    async def _events(self, exchange: HttpExchange) -> None:
        if self._viewers is None:
            await exchange.reply(error(404, "a recording does not go on"))
            return
        news = self._viewers.watch()
        exchange.watch()
        try:
            first = await anext(news, b"")
            await exchange.send({"type": "http.response.start", "status": 200, "headers": list(_EVENTS)})
            await exchange.send(_event(first))
            async for snapshot in news:
                if self._refused(exchange):  # the rules have changed: it asks again, and gets the error
                    break
                await exchange.send(_event(snapshot))  # waits while the client takes nothing
            await exchange.send({"type": "http.response.body", "body": b""})
        except TooMany as full:
            await exchange.reply(error(503, str(full), (b"retry-after", b"10")))
        except asyncio.CancelledError:
            if not (exchange.client_left or self._viewers.closed):
                raise
        finally:
            exchange.end_watch()
            await news.aclose()


class _NotKnown(Exception):
    """Error: the requested data does not exist; the message says what."""


class _Busy(Exception):
    """Error: another request is being processed; the message says which."""


def _event(snapshot: bytes) -> dict[str, object]:
    return {"type": "http.response.body", "body": b"data: %b\n\n" % snapshot, "more_body": True}


def _number(query: bytes, name: bytes) -> int:
    """Return a number from a query. Raises ValueError with a message for users."""
    given = parse_qs(query).get(name, [b""])[0]
    if not given.isdigit() or len(given) > _LONGEST_NUMBER:
        raise ValueError(f"give {name.decode()}=N, a whole number")
    return int(given)
