"""Shard's side of the links: its clients are connected to frontends, which relay their requests."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

import grpc

from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.outcome import SHUTTING_DOWN
from tidegate_proxy.configuration.config import ServerTls
from tidegate_proxy.frontends import frames
from tidegate_proxy.frontends.address import ShardAddress
from tidegate_proxy.frontends.frames import STREAM_METHOD, FrameType
from tidegate_proxy.frontends.link import Link
from tidegate_proxy.frontends.shard_side_calls import RemoteCall, RemoteExchange
from tidegate_proxy.transport.client_bounds import ClientBounds, Served
from tidegate_proxy.transport.http2.connection import ALPN_PROTOCOLS
from tidegate_proxy.transport.tls import server_context

if TYPE_CHECKING:
    from tidegate_proxy.servers.http.interface import Application
    from tidegate_proxy.transport import RpcCall


_POLL_S: Final = 0.01
SERVED_PROTOCOLS: Final[tuple[Served, ...]] = ("grpc", "http")
"""Protocols that frontends serve."""
_LAST_WORDS_S: Final = 1.0
"""How long it may take to tell clients that they will not be answered."""
_HEARD_S: Final = 1.5
"""Frontends answer within a second; who has not by then does not."""


async def _has_none(_model: str) -> bool:
    return False


@dataclass(frozen=True)
class ShardServices:
    """Services that answer the clients of a shard's frontends."""

    accept: Callable[["RpcCall"], None]
    """Handler of their gRPC calls."""
    application: "Application | None" = None
    """Handler of their HTTP requests; None: HTTP is not served."""
    page: "Application | None" = None
    """Handler of the metrics endpoint; None: not served."""
    bounds: ClientBounds = field(default_factory=ClientBounds)
    """Counters of what they hold."""
    has: Callable[[str], Awaitable[bool]] = _has_none
    """Query whether its Tritons have a model that the catalog may not know yet; for frontends of several shards."""


@dataclass(eq=False, repr=False)
class Shard:
    """Shard that accepts links of frontends, and passes their requests to a gRPC server and an HTTP application."""

    _address: ShardAddress
    """Where frontends connect."""
    grpc_port: int
    """Port of the frontends, like the others."""
    http_port: int | None
    """None: no HTTP."""
    _frontends: int
    """Number that must accept clients before it is open."""
    metrics_port: int | None = None
    """Where they serve its metrics; None: it serves them itself."""
    reconnect_timeout_s: float | None = None
    """Frontends continue when it ends, and hold requests for it for so long; None: they end with it."""
    number: int | None = None
    """Number of the shard, if there are several, each with a part of the models; None: it has all."""

    def __post_init__(self) -> None:
        self.services: ShardServices | None = None
        """Services for the frontends' clients; None: not open."""
        self._serves: frames.ShardModels | None = None
        self._listener: asyncio.AbstractServer | None = None
        self._closed = False
        self._links: set[FrontendLink] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, services: "ShardServices") -> None:
        """Accept frontends; return when all of them accept clients. Raises OSError, TlsError."""
        self.services = services
        self._listener = await self._address.listen(lambda link: FrontendLink(self, services, link))
        while sum(link.listens for link in self._links) < self._frontends:
            await asyncio.sleep(_POLL_S)

    @property
    def is_elsewhere(self) -> bool:
        """Whether its frontends are on other machines."""
        return self._address.is_elsewhere

    def tell(self, serves: frames.ShardModels) -> None:
        """Report the models of this shard to the frontends."""
        self._serves = serves
        for link in self._links:
            link.left_of = {name: calls for name, calls in link.left_of.items() if name in serves.leaving}
            link.send(FrameType.SERVES, payload=frames.encode(serves))

    def greet(self, link: "FrontendLink") -> None:
        """Send the state of this shard to a new frontend."""
        if self._serves:
            link.send(FrameType.SERVES, payload=frames.encode(self._serves))
        hello = frames.ShardHello(serves_http=link.services.application is not None, protocol=frames.PROTOCOL_VERSION)
        link.send(FrameType.HELLO, payload=frames.encode(hello))

    def was_left(self, model: str) -> bool:
        """Return whether every frontend uses another shard for a model, and all earlier requests here have ended."""
        return bool(self._links) and all(link.was_left(model) for link in self._links)

    def ends_all(self) -> None:
        """Have the frontends of this machine exit with the shard instead of waiting for its successor."""
        if not self.is_elsewhere:
            self.reconnect_timeout_s = None

    def took_up(self) -> None:
        """Notify the frontends of this machine that another configuration was applied."""
        for link in self._links if not self.is_elsewhere else ():
            link.send(FrameType.RELOAD)

    async def close(self) -> None:
        """Stop the frontends, unless they continue without it, and accept no more."""
        await self.cut_off_exchanges()
        self._closed = True
        if self._listener:
            self._listener.close()
        for link in list(self._links):
            if self.reconnect_timeout_s is None:
                link.send(FrameType.STOP)
            link.close()

    async def retire(self, within_s: float) -> None:
        """Tell gRPC clients to reconnect; return when they had time to receive that.

        Frontends that continue hold new requests instead, and keep their clients.
        """
        loop = asyncio.get_running_loop()
        links = list(self._links)
        for link in links:
            link.is_retired = False
            if self.reconnect_timeout_s is None:
                link.send(FrameType.RETIRE, payload=frames.encode(frames.RetireFrontend(within_s, within_s)))
            else:
                link.send(FrameType.AWAY, payload=frames.size(round((within_s + self.reconnect_timeout_s) * 1e3)))
        give_up = loop.time() + min(within_s, _HEARD_S)
        while any(link in self._links and not link.is_retired for link in links) and loop.time() < give_up:
            await asyncio.sleep(_POLL_S)

    def retire_http(self, cut_s: float, serve_s: float) -> None:
        """Tell HTTP clients to reconnect, unless the frontends continue."""
        if self.reconnect_timeout_s is not None:
            return
        for link in self._links:
            link.send(FrameType.RETIRE_HTTP, payload=frames.encode(frames.RetireFrontend(cut_s, serve_s)))

    @property
    def open_calls(self) -> int:
        """Number of gRPC calls that have not ended."""
        return sum(len(link.calls) for link in self._links)

    @property
    def open_exchanges(self) -> int:
        """Number of HTTP requests that have not ended."""
        return len(self._tasks)

    def cut_off(self) -> int:
        """End all gRPC calls that have not ended; return their number."""
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

    def joined(self, link: "FrontendLink") -> None:
        """Add a frontend, which may be too late."""
        self._links.add(link)
        if self._closed:
            link.close()

    def left(self, link: "FrontendLink") -> None:
        """Remove a frontend."""
        self._links.discard(link)
        self.count()

    def count(self) -> None:
        """Sum the connection counts of the frontends."""
        totals: Counter[str] = Counter()
        for link in self._links:
            totals.update(link.connections)
        if self.services:
            for protocol in SERVED_PROTOCOLS:
                self.services.bounds.connections[protocol] = totals[protocol]

    def begin(self, exchange: RemoteExchange, application: "Application | None") -> None:
        """Answer an HTTP request."""
        assert application is not None, "no frontend listens for it otherwise"
        task = asyncio.get_running_loop().create_task(exchange.run(application))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def find(self, link: "FrontendLink", number: int, model: str) -> None:
        """Answer whether it has a model.

        `number`: of the query, for the response.
        """

        async def answer() -> None:
            link.send(FrameType.ANSWER, number, b"\x01" if await link.services.has(model) else b"\x00")

        task = asyncio.get_running_loop().create_task(answer())
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            faults.report("answering an HTTP request", error)


class FrontendLink:
    """Link to one frontend: its calls and exchanges, by the numbers that it assigned."""

    def __init__(self, shard: Shard, services: ShardServices, link: Link) -> None:
        self.calls: dict[int, RemoteCall] = {}
        self.connections: dict[str, int] = {}
        """Number of its clients, by protocol."""
        self.listens = False
        """Whether it accepts clients."""
        self.is_retired = False
        """Whether its clients had time to learn that they should reconnect."""
        self.services = services
        self.bounds = services.bounds
        self.now_s = asyncio.get_running_loop().time
        self.left_of: dict[str, set[RemoteCall | RemoteExchange]] = {}
        """Models for which this frontend uses another shard, with its earlier requests here that may not have ended."""
        self._exchanges: dict[int, RemoteExchange] = {}
        self._openings = frames.CallOpenings()
        self._shard = shard
        self._link = link
        self._unread = 0
        shard.joined(self)
        shard.greet(self)

    def send(self, kind: FrameType, number: int = 0, payload: bytes = b"") -> None:
        """Send a frame.

        `number`: its call or exchange, 0: none; `payload`: its content.
        """
        self._link.send(kind, number, payload)

    def close(self) -> None:
        """Close the link."""
        self._link.close()

    def was_left(self, model: str) -> bool:
        """Return whether this frontend uses another shard for a model, and its earlier requests here have ended."""
        before = self.left_of.get(model)
        if before is None:
            return False
        before &= {*self.calls.values(), *self._exchanges.values()}
        return not before

    def over(self, number: int) -> None:
        """Remove a call or exchange that has ended."""
        self.calls.pop(number, None)
        self._exchanges.pop(number, None)

    def take(self, kind: int, number: int, payload: bytes) -> None:
        """Handle a frame of the frontend.

        `kind`: type of the frame; `number`: its call or exchange, 0: none; `payload`: its content.
        """
        if kind == FrameType.CALL:
            self._call(number, payload)
        elif kind == FrameType.ASK:
            ask = frames.ask_of(payload)
            exchange = self._exchanges[number] = RemoteExchange(self, number, ask)
            self._shard.begin(exchange, self.services.page if ask.is_page else self.services.application)
        elif kind == FrameType.COUNTS:
            self._count(frames.counts_of(payload))
        elif kind == FrameType.LISTENS:
            self.listens = True
        elif kind == FrameType.RETIRED:
            self.is_retired = True
        elif kind == FrameType.FIND:
            self._shard.find(self, number, payload.decode("utf-8", "surrogatepass"))
        elif kind == FrameType.LEFT:
            under_way = {call for call in self.calls.values() if call.method != STREAM_METHOD} | set(
                self._exchanges.values()
            )
            self.left_of |= {name: set(under_way) for name in frames.names_of(payload)}
        elif call := self.calls.get(number):
            self._of_call(kind, number, call, payload)
        elif asked := self._exchanges.get(number):
            self._of_exchange(kind, number, asked, payload)

    def lost(self) -> None:
        """Handle the loss of the frontend, and so of its clients."""
        self._shard.left(self)
        self.bounds.unread(-self._unread)
        under_way: list[RemoteCall | RemoteExchange] = [*self.calls.values(), *self._exchanges.values()]
        for one in under_way:
            _let_leave(one)

    def _call(self, number: int, payload: bytes) -> None:
        opening, remaining_s, message = self._openings.read(payload)
        call = RemoteCall(self, number, opening, remaining_s, comes=opening.method != STREAM_METHOD)
        self.calls[number] = call
        self.services.accept(call)
        if message is not None:
            call.came(message)

    def _of_call(self, kind: int, number: int, call: RemoteCall, payload: bytes) -> None:
        if kind == FrameType.MESSAGE:
            call.came(payload)
        elif kind == FrameType.CLOSED:
            call.closed()
        elif kind == FrameType.TAKEN:
            call.taken()
        elif kind == FrameType.GONE:
            self.calls.pop(number, None)
            _let_leave(call)

    def _of_exchange(self, kind: int, number: int, exchange: RemoteExchange, payload: bytes) -> None:
        if kind in (FrameType.BODY, FrameType.BODY_END):
            exchange.came(payload, is_last=kind == FrameType.BODY_END)
        elif kind == FrameType.TAKEN:
            exchange.taken()
        elif kind == FrameType.GONE:
            self._exchanges.pop(number, None)
            _let_leave(exchange)

    def _count(self, counts: frames.FrontendCounts) -> None:
        self.connections = counts.connections
        self.bounds.unread(counts.unread_bytes - self._unread)
        self._unread = counts.unread_bytes
        for protocol, limit, amount in counts.ended:
            self.bounds.ended[cast("Served", protocol), limit] += amount
        self._shard.count()


def _let_leave(one: RemoteCall | RemoteExchange) -> None:
    """A client does not wait any more; a fault over that is no other client's."""
    with faults.contained("a client that left"):
        one.leave()


class GrpcOfFrontends:
    """gRPC server whose connections are held by the frontends; a `transport.Server`."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    @property
    def open_calls(self) -> int:
        """Number of calls that have not ended."""
        return self._shard.open_calls

    async def listen(self, _address: str, tls: ServerTls | None = None) -> int:
        """Return the port where the frontends listen. Raises TlsError for files that they could not use."""
        if tls:
            server_context(tls, ALPN_PROTOCOLS)
        return self._shard.grpc_port

    async def retire(self, within_s: float) -> None:
        """Tell clients to reconnect; return when they had time to receive that. Those that stay are served."""
        await self._shard.retire(within_s)

    async def stop(self, grace_s: float) -> bool:
        """Let calls end, cut off the rest after `grace_s`, and stop the frontends; return whether all had ended."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + grace_s
        while self.open_calls and loop.time() < until_s:
            await asyncio.sleep(_POLL_S)
        cut_off = self._shard.cut_off()
        await self._shard.close()  # what came over HTTP was ended before
        return not cut_off


class HttpOfFrontends:
    """HTTP server whose connections are held by the frontends; an `HttpListener`."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        assert shard.http_port is not None, "the frontends listen for HTTP where the shard is asked to"
        self.port = shard.http_port

    async def drain(self, until: float, serve_until: float = 0.0) -> None:
        """Let requests be answered until an instant of the loop's clock; accept new ones until `serve_until`."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._shard.retire_http(max(0.0, until - now), max(0.0, serve_until - now))
        while loop.time() < min(serve_until, until):
            await asyncio.sleep(_POLL_S)
        while self._shard.open_exchanges and loop.time() < until:
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """Accept no more requests, and fail those in flight."""
        await self._shard.cut_off_exchanges()
