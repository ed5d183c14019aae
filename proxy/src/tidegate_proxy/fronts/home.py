"""The home's side: its clients are connected to fronts, and what they ask comes over the fronts' links."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

import grpc

from tidegate_proxy.access.tls import server_context
from tidegate_proxy.bounds import Bounds, Served
from tidegate_proxy.configuration.config import ServerTls
from tidegate_proxy.faults import faults
from tidegate_proxy.fronts import frames
from tidegate_proxy.fronts.frames import STREAM, Kind
from tidegate_proxy.fronts.link import Link
from tidegate_proxy.fronts.remote_call import RemoteCall
from tidegate_proxy.fronts.remote_exchange import RemoteExchange
from tidegate_proxy.http.interface import Application
from tidegate_proxy.liveness import Liveness
from tidegate_proxy.outcome import SHUTTING_DOWN
from tidegate_proxy.transport.http2.connection import ALPN
from tidegate_proxy.transport.interface import Call

log = logging.getLogger(__name__)

_POLL_S: Final = 0.01
SERVED: Final[tuple[Served, ...]] = ("grpc", "http")
"""What fronts serve."""
_LAST_WORDS_S: Final = 1.0
"""How long it may take to tell clients that they will not be answered."""
_HEARD_S: Final = 1.5
"""Fronts answer within a second; who has not by then does not."""


class Home:
    """Takes links of fronts, and gives what comes over them to a gRPC server and an HTTP application."""

    def __init__(self, path: Path, grpc_port: int, http_port: int | None, fronts: int) -> None:
        """`path`: of the socket for links, in a folder that only its owner enters; ports: where the fronts listen.

        `fronts`: how many there are.
        """
        self.grpc_port = grpc_port
        self.http_port = http_port
        self.accept: Callable[[Call], None] | None = None
        self.application: Application | None = None
        self.bounds = Bounds()
        self._path = path
        self._fronts = fronts
        self._listener: asyncio.AbstractServer | None = None
        self._closed = False
        self._links: set[FrontLink] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def grpc(self, accept: Callable[[Call], None], bounds: Bounds) -> "GrpcOfFronts":
        """The server of gRPC whose clients the fronts have; `bounds` counts what they hold."""
        self.accept, self.bounds = accept, bounds
        return GrpcOfFronts(self)

    def http(self, application: Application) -> "HttpOfFronts":
        """The server of HTTP whose clients the fronts have."""
        self.application = application
        return HttpOfFronts(self)

    async def open(self) -> None:
        """Let fronts in; return when all of them have let clients in. Raises OSError."""
        self._path.unlink(missing_ok=True)
        self._listener = await asyncio.get_running_loop().create_unix_server(
            lambda: Link(lambda link: FrontLink(self, link)), str(self._path)
        )
        while sum(link.listens for link in self._links) < self._fronts:
            await asyncio.sleep(_POLL_S)

    async def close(self) -> None:
        """Have the fronts end, and let nobody in."""
        await self.cut_off_exchanges()
        self._closed = True
        if self._listener:
            self._listener.close()
        for link in list(self._links):
            link.send(Kind.STOP)
            link.close()

    async def retire(self, within_s: float) -> None:
        """Have clients over gRPC told to go elsewhere; return when they had time to hear it."""
        loop = asyncio.get_running_loop()
        told = list(self._links)
        for link in told:
            link.is_retired = False
            link.send(Kind.RETIRE, payload=frames.encode(frames.Retire(within_s, within_s)))
        give_up = loop.time() + min(within_s, _HEARD_S)
        while any(link in self._links and not link.is_retired for link in told) and loop.time() < give_up:
            await asyncio.sleep(_POLL_S)

    def retire_http(self, cut_s: float, serve_s: float) -> None:
        """Have clients over HTTP told to go elsewhere."""
        for link in self._links:
            link.send(Kind.RETIRE_HTTP, payload=frames.encode(frames.Retire(cut_s, serve_s)))

    @property
    def open_calls(self) -> int:
        """gRPC calls that have not ended."""
        return sum(len(link.calls) for link in self._links)

    @property
    def open_exchanges(self) -> int:
        """HTTP requests that have not ended."""
        return len(self._tasks)

    def cut_off(self) -> int:
        """End all gRPC calls that have not ended; how many."""
        calls = [call for link in self._links for call in link.calls.values()]
        for call in calls:
            call.cut_off(grpc.StatusCode.UNAVAILABLE, SHUTTING_DOWN)
        return len(calls)

    async def cut_off_exchanges(self) -> None:
        """End all HTTP requests that have not ended."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LAST_WORDS_S)

    # For its links -----------------------------------------------------------------------------------------------

    def joined(self, link: "FrontLink") -> None:
        """A front is there, maybe too late."""
        self._links.add(link)
        if self._closed:
            link.close()

    def left(self, link: "FrontLink") -> None:
        """A front is no more."""
        self._links.discard(link)
        self.count()

    def count(self) -> None:
        """Bring together what the fronts say of their connections."""
        totals: Counter[str] = Counter()
        for link in self._links:
            totals.update(link.connections)
        for protocol in SERVED:
            self.bounds.connections[protocol] = totals[protocol]

    def begin(self, exchange: RemoteExchange) -> None:
        """Have an HTTP request answered."""
        assert self.application is not None, "no front listens for HTTP otherwise"
        task = asyncio.get_running_loop().create_task(exchange.run(self.application))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            faults.report("answering an HTTP request", error)


class FrontLink:
    """One front: its calls and exchanges, by the numbers that it gave them."""

    def __init__(self, home: Home, link: Link) -> None:
        self.calls: dict[int, RemoteCall] = {}
        self.connections: dict[str, int] = {}
        """How many clients it has, by protocol."""
        self.listens = False
        """Whether clients come in there."""
        self.is_retired = False
        """Whether its clients have heard that they are to go elsewhere."""
        self.bounds = home.bounds
        self.now_s = asyncio.get_running_loop().time
        self._exchanges: dict[int, RemoteExchange] = {}
        self._openings = frames.Openings()
        self._home = home
        self._link = link
        self._unread = 0
        home.joined(self)
        link.send(Kind.HELLO, payload=frames.encode(frames.Hello(serves_http=home.application is not None)))

    def send(self, kind: Kind, number: int = 0, payload: bytes = b"") -> None:
        """Send a frame."""
        self._link.send(kind, number, payload)

    def close(self) -> None:
        """End it."""
        self._link.close()

    def over(self, number: int) -> None:
        """A call or exchange has ended."""
        self.calls.pop(number, None)
        self._exchanges.pop(number, None)

    def take(self, kind: int, number: int, payload: bytes) -> None:
        """One frame of the front's."""
        if kind == Kind.CALL:
            self._call(number, payload)
        elif kind == Kind.ASK:
            exchange = self._exchanges[number] = RemoteExchange(self, number, frames.ask_of(payload))
            self._home.begin(exchange)
        elif kind == Kind.COUNTS:
            self._count(frames.counts_of(payload))
        elif kind == Kind.LISTENS:
            self.listens = True
        elif kind == Kind.RETIRED:
            self.is_retired = True
        elif call := self.calls.get(number):
            self._of_call(kind, number, call, payload)
        elif exchange := self._exchanges.get(number):  # type: ignore[assignment]
            self._of_exchange(kind, number, exchange, payload)

    def lost(self) -> None:
        """The front ended, and its clients are gone."""
        self._home.left(self)
        self.bounds.unread(-self._unread)
        under_way: list[RemoteCall | RemoteExchange] = [*self.calls.values(), *self._exchanges.values()]
        for one in under_way:
            with suppress(Exception):  # one that breaks keeps no other from hearing of it
                one.leave()

    def _call(self, number: int, payload: bytes) -> None:
        opening, remaining_s, message = self._openings.read(payload)
        call = RemoteCall(self, number, opening, remaining_s, comes=opening.method != STREAM)
        self.calls[number] = call
        assert self._home.accept is not None, "it was given before links were let in"
        self._home.accept(call)
        if message is not None:
            call.came(message)

    def _of_call(self, kind: int, number: int, call: RemoteCall, payload: bytes) -> None:
        if kind == Kind.MESSAGE:
            call.came(payload)
        elif kind == Kind.CLOSED:
            call.closed()
        elif kind == Kind.TAKEN:
            call.taken()
        elif kind == Kind.GONE:
            self.calls.pop(number, None)
            call.leave()

    def _of_exchange(self, kind: int, number: int, exchange: RemoteExchange, payload: bytes) -> None:
        if kind in (Kind.BODY, Kind.BODY_END):
            exchange.came(payload, is_last=kind == Kind.BODY_END)
        elif kind == Kind.TAKEN:
            exchange.taken()
        elif kind == Kind.GONE:
            self._exchanges.pop(number, None)
            exchange.leave()

    def _count(self, counts: frames.Counts) -> None:
        self.connections = counts.connections
        self.bounds.unread(counts.unread_bytes - self._unread)
        self._unread = counts.unread_bytes
        for protocol, limit, amount in counts.ended:
            self.bounds.ended[cast("Served", protocol), limit] += amount
        self._home.count()


class GrpcOfFronts:
    """A `transport.Server` whose connections the fronts have."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def watch(self, liveness: Liveness) -> None:
        """Nothing: its thread is the event loop's."""

    @property
    def open_calls(self) -> int:
        """Calls that have not ended."""
        return self._home.open_calls

    async def listen(self, _address: str, tls: ServerTls | None = None) -> int:
        """The port where the fronts listen. Raises TlsError for files that they could not use."""
        if tls:
            server_context(tls, ALPN)
        return self._home.grpc_port

    async def retire(self, within_s: float) -> None:
        """Have clients told to go elsewhere; return when they had time to hear it. Whoever stays is served."""
        await self._home.retire(within_s)

    async def stop(self, grace_s: float) -> bool:
        """Let what is under way end, cut off what has not ended then, and end the fronts; whether all had."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + grace_s
        while self.open_calls and loop.time() < until_s:
            await asyncio.sleep(_POLL_S)
        cut_off = self._home.cut_off()
        await self._home.close()  # what came over HTTP was ended before
        return not cut_off


class HttpOfFronts:
    """An `http.HttpServer` whose connections the fronts have."""

    def __init__(self, home: Home) -> None:
        self._home = home
        assert home.http_port is not None, "the fronts listen for HTTP where the home is asked to"
        self.port = home.http_port

    async def drain(self, until: float, serve_until: float = 0.0) -> None:
        """Let what is under way be answered, until an instant of the loop's clock; new requests until another."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._home.retire_http(max(0.0, until - now), max(0.0, serve_until - now))
        while loop.time() < min(serve_until, until):
            await asyncio.sleep(_POLL_S)
        while self._home.open_exchanges and loop.time() < until:
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """Take no more requests, and tell those under way that they will not be answered."""
        await self._home.cut_off_exchanges()
