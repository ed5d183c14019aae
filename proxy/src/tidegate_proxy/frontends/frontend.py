"""Frontend: a process that holds clients' connections and relays their requests to shards."""

import asyncio
import contextlib
import gc
import json
import logging
import signal
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final
from weakref import WeakSet

from tidegate_proxy.access.gate import AccessControl
from tidegate_proxy.base import refusal
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.outcome import RequestFailed, own_fault
from tidegate_proxy.base.tasks import cancel
from tidegate_proxy.base.watchdog import Watchdog
from tidegate_proxy.configuration.config import ServeConfig, within_descriptors
from tidegate_proxy.configuration.reload import diff
from tidegate_proxy.configuration.settings import SettingsHolder, settings_of
from tidegate_proxy.frontends import frames
from tidegate_proxy.frontends.address import RemoteAddress, ShardAddress
from tidegate_proxy.frontends.frames import FrameType
from tidegate_proxy.frontends.frontend_side_calls import (
    RelayedCall,
    RelayedExchange,
    RelayedStream,
    ShardLost,
    scope_of,
)
from tidegate_proxy.frontends.routes import ShardRoutes
from tidegate_proxy.frontends.shard_connection import ShardConnection, scheduler_unavailable, shutting_down
from tidegate_proxy.frontends.shard_fanout import OF_ONE_MODEL, HttpShardFanout, ShardFanout
from tidegate_proxy.servers.http.exchange import HttpExchange
from tidegate_proxy.servers.http.interface import Receive, Scope, Send
from tidegate_proxy.servers.http.routes import match
from tidegate_proxy.servers.http.server import HttpServer, start_server
from tidegate_proxy.servers.http.service import http_limits
from tidegate_proxy.transport import RpcCall
from tidegate_proxy.transport.client_bounds import ClientBounds, Served
from tidegate_proxy.transport.file_watcher import WatchedFiles, credential_files
from tidegate_proxy.transport.http2 import Http2Server
from tidegate_proxy.transport.ports import prefer_newest
from tidegate_proxy.transport.tls import server_context

log = logging.getLogger(__name__)

_COUNT_EVERY_S: Final = 0.5
_CREDENTIALS_POLL_S: Final = 1.0
_ALL_WITHIN_S: Final = 5.0
"""Clients are let in when every shard is there, or so long after the first of them."""
_HEARD_S: Final = 1.0
"""Clients that hear that they are to go elsewhere have heard it by then."""
_POLL_S: Final = 0.01
_LAST_WORDS_S: Final = 1.0
"""How long it may take to tell clients how their calls ended before their connections are cut."""


_NO_COUNTS: Final = frames.encode(frames.FrontendCounts({}, [], 0))


class Frontend:
    """Frontend with its servers and its links to the shards. Use it only in one event loop."""

    def __init__(
        self,
        config: ServeConfig,
        shards: Sequence[ShardAddress],
        grpc_port: socket.socket,
        http_port: socket.socket | None,
        metrics_port: socket.socket | None = None,
        *,
        on_listening: Callable[[], None] = lambda: None,
        on_taken_up: Callable[[ServeConfig], None] = lambda _config: None,
    ) -> None:
        """Create the frontend.

        `shards`: their addresses, in order; the ports are bound, and listen once a shard is connected.

        `metrics_port`: port for the shards' metrics; None: the shard serves them itself. `on_listening`: called when
        clients are accepted; `on_taken_up`: called with another configuration after it was applied.

        Raises CredentialFileError and RestrictionError for invalid files. `grpc_port`, `http_port`: bound sockets for
        clients, `http_port` None: no HTTP.
        """
        self._config = config = within_descriptors(config)
        self.shards = [ShardConnection(number, address, self) for number, address in enumerate(shards)]
        self.are_several = bool(config.shards)
        """Whether shards report their models; otherwise there is one, with all models."""
        self._routes = ShardRoutes(len(self.shards))
        self._together = ShardFanout(self.shards, self._shard_of)
        self._together_http = HttpShardFanout(self.shards, self._shard_of)
        self._grpc_port, self._http_port, self._metrics_port = grpc_port, http_port, metrics_port
        self.in_force = SettingsHolder(settings_of(config))
        self.bounds = ClientBounds(self.in_force)
        """Bytes and connections that this frontend's clients hold."""
        self._gate = AccessControl(config)
        self._grpc = Http2Server(self._accept, config.limits, self.bounds)
        self._http: HttpServer | None = None
        self._streams: WeakSet[RelayedStream] = WeakSet()
        self._retiring: asyncio.Future[None] | None = None
        """Has clients over gRPC go elsewhere, since all ends."""
        self._read_again: Callable[[], ServeConfig] | None = None
        self._metrics: HttpServer | None = None
        self._on_listening = on_listening
        self._on_taken_up = on_taken_up
        self._serves_http = False
        self._opening: asyncio.TimerHandle | None = None
        self._counted: Counter[tuple[Served, str]] = Counter()
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run_as_process(self, read_again: Callable[[], ServeConfig]) -> None:
        """Serve as `run` does; SIGTERM ends it too, and SIGHUP reloads the configuration."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: self._spawn(self._leave()))
        self._read_again = read_again
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        watchdog = Watchdog(lambda: self.in_force.settings.liveness_timeout_s)
        gc.collect()
        gc.freeze()  # these objects stay: each garbage collection over them would delay all requests
        await self.run()
        watchdog.close()

    async def run(self) -> None:
        """Serve until the shard says to stop."""
        for work in (*(shard.keep_linked() for shard in self.shards), self._tell_counts(), self._look_at_files()):
            self._spawn(work)
        await self._stop.wait()
        await cancel(*self._tasks)
        for stream in list(self._streams):
            stream.fail(shutting_down())
        await self._grpc.stop(_LAST_WORDS_S)
        for server in (self._http, self._metrics):
            if server:
                await server.stop()
        for shard in self.shards:
            shard.close()

    def stop(self) -> None:
        """Stop the frontend."""
        self._stop.set()

    @property
    def is_listening(self) -> bool:
        """Whether clients are accepted."""
        return self._grpc.is_listening

    # For what is relayed -----------------------------------------------------------------------------------------

    def find(
        self, model: str, then: Callable[[ShardConnection], None], refuse: Callable[[RequestFailed], None]
    ) -> None:
        """Call `then` with the shard that serves a model, at once or later, or `refuse` with a failure."""
        if not self.are_several:
            then(self.shards[0])
        elif shard := self._shard_of(model):
            then(shard)
        elif self._routes.knows_all:
            self._spawn(self._look_for(model, then, refuse))
        else:  # it may be that of one that was never there
            refuse(scheduler_unavailable())

    def any_shard(self) -> ShardConnection | None:
        """Return the first shard that can take requests, or None."""
        return next((shard for shard in self.shards if shard.alive), None)

    def _shard_of(self, model: str) -> ShardConnection | None:
        number = self._routes.shard_of(model)
        return None if number is None else self.shards[number]

    async def _look_for(
        self, model: str, then: Callable[[ShardConnection], None], refuse: Callable[[RequestFailed], None]
    ) -> None:
        """One that may just have been loaded; if it was not, a shard says so as Triton does."""
        alive = [shard for shard in self.shards if shard.alive] or self.shards[:1]
        found = await asyncio.gather(*(shard.has(model) for shard in alive)) if model and len(alive) > 1 else ()
        try:
            then(next((shard for shard, has in zip(alive, found, strict=False) if has), alive[0]))
        except Exception as error:  # one call's fault must not end the frontend
            faults.report("a call", error)
            refuse(own_fault())

    # For its shards -----------------------------------------------------------------------------------------------

    def shard_said(self, shard: ShardConnection, kind: int, payload: bytes) -> None:
        """Handle a frame of a shard that concerns no call.

        `kind`: type of the frame; `payload`: its content.
        """
        if kind == FrameType.SERVES:
            self._routes.said(shard.number, frames.serves_of(payload))
            self._tell_news()
        elif kind == FrameType.HELLO:
            self._welcome(shard, frames.hello_of(payload))
        elif kind == FrameType.AWAY:
            shard.is_away(frames.size_of(payload) / 1e3)
            shard.send(FrameType.RETIRED)
        elif kind == FrameType.RETIRE:
            self._spawn(self._retire(shard, frames.retire_of(payload)))
        elif kind == FrameType.RETIRE_HTTP:
            self._spawn(self._retire_http(frames.retire_of(payload)))
        elif kind == FrameType.RELOAD:
            self._reload()
        elif kind == FrameType.STOP:
            shard.stopped()
            if all(each.has_stopped or not each.is_linked for each in self.shards):
                self.stop()

    def shard_lost(self, shard: ShardConnection) -> None:
        """Handle the loss of a shard."""
        self._routes.lost(shard.number)
        self._tell_news()

    def _tell_news(self) -> None:
        for number, models in self._routes.news():
            self.shards[number].send(FrameType.LEFT, payload=frames.encode(models))

    def _welcome(self, shard: ShardConnection, hello: frames.ShardHello) -> None:
        if hello.protocol != frames.PROTOCOL_VERSION:
            log.error(
                "shard runs another release, not used",
                extra={"shard": shard.number, "protocol": hello.protocol, "expected": frames.PROTOCOL_VERSION},
            )
            return
        shard.said_hello()
        self._serves_http |= hello.serves_http
        if self.is_listening:
            shard.send(FrameType.LISTENS)
        elif all(each.alive for each in self.shards):
            self._open()
        elif self._opening is None:
            self._opening = asyncio.get_running_loop().call_later(_ALL_WITHIN_S, self._open)

    def _open(self) -> None:
        if self._opening:
            self._opening.cancel()
        if not self.is_listening:
            self._spawn(self._listen())

    # What clients ask --------------------------------------------------------------------------------------------

    def _accept(self, call: RpcCall) -> None:
        try:
            if refused := self._gate.refusal(call.method, call.metadata):
                call.end(refused.code, refused.details)
                return
            call.owner = self._gate.owner(call.metadata, call.peer)
            request_timeout_s = self._config.limits.request_timeout_s
            if not self.are_several or call.method in OF_ONE_MODEL:
                RelayedCall(self, call, request_timeout_s)
            elif call.method == frames.STREAM_METHOD:
                self._streams.add(RelayedStream(self, call))
            else:
                call.receive(lambda message: self._together.respond(call, message, self._spawn), request_timeout_s)
        except Exception as error:
            faults.report("a call", error)
            failed = own_fault()
            call.end(failed.code, failed.details, failed.reason)

    async def _ask(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The HTTP application."""
        route = match(scope["raw_path"]) if self.are_several else None
        if route and self._together_http.answers(scope["method"], route):
            limit = int(self._config.limits.max_message_bytes)
            await self._together_http.respond(route, scope, receive, send, limit, self.bounds)
            return
        await self._relay(RelayedExchange(self, route.model if route else "", scope, receive, send), send)

    async def _relay(self, exchange: RelayedExchange, send: Send) -> None:
        """Have a shard answer a request, and say so where it is lost."""
        try:
            await exchange.run()
        except ShardLost as lost:
            if exchange.has_answer:
                log.warning("response cut off", extra={"error": str(lost)})
                return
            body = json.dumps({"error": str(lost)}).encode()
            length = (b"content-length", str(len(body)).encode())
            why = (refusal.REASON_HEADER.encode(), lost.reason.encode())
            headers = [(b"content-type", b"application/json"), length, why]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    async def _ask_for_page(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application of the metrics page."""
        if len(self.shards) < 2:
            await self._relay(RelayedExchange(self, "", scope, receive, send, is_page=True), send)
            return
        exchange = HttpExchange(scope, receive, send)
        await exchange.reply(await self._together_http.page(scope_of(scope)))

    # What it does by itself --------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Let clients in."""
        if self._metrics is None and self._metrics_port is not None:
            self._metrics = await start_server(
                self._ask_for_page,
                self._metrics_port,
                limits=http_limits(self._config),
                bounds=self.bounds,
                served="metrics",
            )
            self._prefer_newest(self._metrics_port)
        if self._http is None and self._http_port is not None and self._serves_http:
            tls = self._config.tls
            self._http = await start_server(
                self._ask,
                self._http_port,
                limits=http_limits(self._config),
                tls=server_context(tls) if tls else None,
                bounds=self.bounds,
            )
            self._prefer_newest(self._http_port)
        if not self.is_listening:
            await self._grpc.listen_on(self._grpc_port, self._config.tls)
            self._prefer_newest(self._grpc_port)
        for shard in self.shards:
            shard.send(FrameType.LISTENS)
        self._on_listening()

    def _prefer_newest(self, port: socket.socket) -> None:
        if self._config.listen.reuse_port:
            prefer_newest(port.getsockname()[1])

    async def _tell_counts(self) -> None:
        """For ever: have the shard know how the connections are."""
        while True:
            await asyncio.sleep(_COUNT_EVERY_S)
            new = Counter(self.bounds.ended)
            new.subtract(self._counted)
            self._counted.update(new)
            counts = frames.FrontendCounts(
                connections={str(protocol): count for protocol, count in self.bounds.connections.items()},
                ended=[(protocol, limit, amount) for (protocol, limit), amount in new.items() if amount],
                unread_bytes=self.bounds.unread_bytes,
            )
            counting = self.any_shard()
            if counting:  # one of them: they are to be counted once
                counting.send(FrameType.COUNTS, payload=frames.encode(counts))
                for other in self.shards:
                    if other is not counting:
                        other.send(FrameType.COUNTS, payload=_NO_COUNTS)

    async def _look_at_files(self) -> None:
        """For ever: take up tokens and keys that have changed in their files."""
        watched = WatchedFiles(credential_files(self._config))
        while True:
            await asyncio.sleep(_CREDENTIALS_POLL_S)
            try:
                if watched.changed():
                    watched = WatchedFiles(credential_files(self._config))
                    self._gate.replace(self._config)
            except Exception as error:  # the former rules stay
                log.error("credentials not reloaded, the former ones stay", extra={"error": str(error)})

    def _reload(self) -> None:
        """Take up what concerns clients' connections."""
        if self._read_again is None:
            return
        try:
            config = diff(self._config, self._read_again()).effective
            self._gate.follow(AccessControl(config))
            if len(config.shards) == len(self.shards):  # how many there are only a restart changes
                for line, shard in zip(self.shards, config.shards, strict=True):
                    if shard.address:
                        line.move(RemoteAddress(shard, config.shard_links))
            self._config = config
            self.in_force.change(settings_of(config))
            logging.getLogger().setLevel(config.log.level.upper())
            self._on_taken_up(config)
        except Exception as error:  # the next one may be better
            log.error("configuration not applied by a frontend", extra={"error": str(error)})

    async def _retire(self, shard: ShardConnection, retire: frames.RetireFrontend) -> None:
        if self._retiring is None:  # every shard says so
            self._retiring = asyncio.ensure_future(self._grpc.retire(retire.cut_s))
        await asyncio.wait([self._retiring], timeout=_HEARD_S)
        shard.send(FrameType.RETIRED)

    async def _retire_http(self, retire: frames.RetireFrontend) -> None:
        now = asyncio.get_running_loop().time()
        if self._http:
            await self._http.drain(now + retire.cut_s, now + retire.serve_s)

    async def _leave(self) -> None:
        """End alone: have the clients connect to other frontends, and requests in flight be answered."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._config.drain_timeout_s
        self._grpc.close_port()
        http = self._spawn(self._retire_http(frames.RetireFrontend(self._config.drain_timeout_s, 0.0)))
        await self._grpc.retire(self._config.drain_timeout_s)
        while not all(shard.is_idle for shard in self.shards) and loop.time() < until:
            await asyncio.sleep(_POLL_S)
        await asyncio.wait([http], timeout=max(0.0, until - loop.time()))
        self._stop.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            faults.report("a frontend", error)
            with contextlib.suppress(RuntimeError):
                self._stop.set()
