"""A front: a process that clients are connected to, which passes what they ask on to its home."""

import asyncio
import contextlib
import gc
import json
import logging
import signal
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from itertools import count
from pathlib import Path
from typing import Any, Final, Protocol

import grpc

from tidegate_proxy import refusal
from tidegate_proxy.access.gate import Gate
from tidegate_proxy.access.tls import server_context
from tidegate_proxy.access.watched import WatchedFiles, credential_files
from tidegate_proxy.bounds import Bounds, Served
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.reload import diff
from tidegate_proxy.faults import faults
from tidegate_proxy.fronts import frames
from tidegate_proxy.fronts.frames import Kind
from tidegate_proxy.fronts.link import Link
from tidegate_proxy.fronts.relayed_call import RelayedCall
from tidegate_proxy.fronts.relayed_exchange import HomeLost, RelayedExchange
from tidegate_proxy.http.interface import Receive, Scope, Send
from tidegate_proxy.http.server import HttpServer, start_server
from tidegate_proxy.http.service import http_limits
from tidegate_proxy.outcome import SHUTTING_DOWN, own_fault
from tidegate_proxy.settings import InForce, settings_of
from tidegate_proxy.take_over import prefer_newest
from tidegate_proxy.transport.http2 import Server
from tidegate_proxy.transport.interface import Call
from tidegate_proxy.watchdog import Watchdog

log = logging.getLogger(__name__)

NO_HOME: Final = "Tidegate's scheduler is not there: it is being started again"
HOME_LOST: Final = "Tidegate's scheduler ended while the request was under way"
_COUNT_EVERY_S: Final = 0.5
_LOOK_EVERY_S: Final = 1.0
_CONNECT_EVERY_S: Final = (0.02, 0.5)
"""How soon a home is looked for again that was not there: at first, and at last."""
_POLL_S: Final = 0.01
_LAST_WORDS_S: Final = 1.0
"""How long it may take to tell clients how their calls ended before their connections are cut."""
_NUMBERS: Final = (1 << 32) - 1
_UNAVAILABLE: Final = grpc.StatusCode.UNAVAILABLE


class Relayed(Protocol):
    """A call or an exchange that is passed on."""

    def take(self, kind: int, payload: bytes) -> None:
        """What the home says of it."""

    def fail(self, code: int, details: str, reason: str) -> None:
        """End it with a status of gRPC's."""


class Front:
    """The servers that clients are connected to, and the link to the home. Lives in one event loop."""

    def __init__(
        self, config: ServeConfig, home: Path, grpc_port: socket.socket, http_port: socket.socket | None
    ) -> None:
        """`home`: the socket of its links; the ports are bound, and listened on once there is a home.

        Raises CredentialFileError and RestrictionError for files that cannot be used.
        """
        self._config = config
        self._home = home
        self._grpc_port, self._http_port = grpc_port, http_port
        self.in_force = InForce(settings_of(config))
        self.bounds = Bounds(self.in_force)
        """What its own clients hold."""
        self._gate = Gate(config)
        self._grpc = Server(self._accept, config.limits, self.bounds)
        self._http: HttpServer | None = None
        self._link: Link | None = None
        """To the home; None: there is none."""
        self._under_way: dict[int, Relayed] = {}
        self._numbers = count(1)
        self._counted: Counter[tuple[Served, str]] = Counter()
        self._lost = asyncio.Event()
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run_as_process(self, read_again: Callable[[], ServeConfig]) -> None:
        """Serve as `run` does; SIGTERM ends it, too, and SIGHUP has the configuration read again."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: self._spawn(self._leave()))
        loop.add_signal_handler(signal.SIGHUP, lambda: self._reload(read_again))
        watchdog = Watchdog(lambda: self.in_force.settings.silence_s)
        gc.collect()
        gc.freeze()  # what is here stays: looked through for garbage again and again, it would hold everybody
        await self.run()
        watchdog.close()

    async def run(self) -> None:
        """Serve until the home says to stop."""
        for work in (self._keep_linked(), self._tell_counts(), self._look_at_files()):
            self._spawn(work)
        await self._stop.wait()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._grpc.stop(_LAST_WORDS_S)
        if self._http:
            await self._http.stop()
        if self._link:
            self._link.close()

    def stop(self) -> None:
        """Have it end."""
        self._stop.set()

    @property
    def is_listening(self) -> bool:
        """Whether clients come in."""
        return self._grpc.is_listening

    # For what is relayed -----------------------------------------------------------------------------------------

    def begin(self, relayed: Relayed) -> int:
        """Something begins: its number; 0, and it is ended, where there is no home."""
        if self._link is None:
            relayed.fail(_UNAVAILABLE.value[0], NO_HOME, refusal.NO_HOME)
            return 0
        number = next(self._numbers) & _NUMBERS
        while not number or number in self._under_way:
            number = next(self._numbers) & _NUMBERS
        self._under_way[number] = relayed
        return number

    def send(self, kind: Kind, number: int = 0, payload: bytes = b"") -> None:
        """Send a frame to the home; where it is lost, what it is about was ended or will be."""
        if self._link:
            self._link.send(kind, number, payload)

    def over(self, number: int) -> None:
        """The call or exchange of this number has ended."""
        self._under_way.pop(number, None)

    # For its link ------------------------------------------------------------------------------------------------

    def _linked(self, link: Link) -> "Front":
        self._link = link
        self._lost.clear()
        return self

    def take(self, kind: int, number: int, payload: bytes) -> None:
        """One frame of the home's."""
        if relayed := self._under_way.get(number):
            relayed.take(kind, payload)
        elif kind == Kind.HELLO:
            self._spawn(self._listen(frames.hello_of(payload)))
        elif kind == Kind.RETIRE:
            self._spawn(self._retire(frames.retire_of(payload)))
        elif kind == Kind.RETIRE_HTTP:
            self._spawn(self._retire_http(frames.retire_of(payload)))
        elif kind == Kind.STOP:
            self.stop()

    def lost(self) -> None:
        """The home ended."""
        self._link = None
        relayed, self._under_way = list(self._under_way.values()), {}
        why = (SHUTTING_DOWN, refusal.SHUTTING_DOWN) if self._stop.is_set() else (HOME_LOST, refusal.NO_HOME)
        for one in relayed:
            try:
                one.fail(_UNAVAILABLE.value[0], *why)
            except Exception as error:  # one that breaks keeps no other from hearing of it
                faults.report("ending a call whose home is lost", error)
        self._lost.set()

    # What clients ask --------------------------------------------------------------------------------------------

    def _accept(self, call: Call) -> None:
        try:
            if refused := self._gate.refusal(call.method, call.metadata):
                call.end(refused.code, refused.details)
                return
            if self._link is None:
                call.end(_UNAVAILABLE, NO_HOME, refusal.NO_HOME)
                return
            call.owner = self._gate.owner(call.metadata, call.peer)
            RelayedCall(self, call, self._config.limits.body_timeout_s)
        except Exception as error:
            faults.report("a call", error)
            failed = own_fault()
            call.end(failed.code, failed.details, failed.refusal)

    async def _ask(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The HTTP application."""
        exchange = RelayedExchange(self, scope, receive, send)
        try:
            await exchange.run()
        except HomeLost as lost:
            if exchange.has_answer:
                raise
            body = json.dumps({"error": str(lost)}).encode()
            length = (b"content-length", str(len(body)).encode())
            why = (refusal.HEADER.encode(), lost.reason.encode())
            headers = [(b"content-type", b"application/json"), length, why]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    # What it does by itself --------------------------------------------------------------------------------------

    async def _keep_linked(self) -> None:
        """Be linked to the home, or look for it, until this ends."""
        loop = asyncio.get_running_loop()
        wait_s, longest_s = _CONNECT_EVERY_S
        while not self._stop.is_set():
            try:
                await loop.create_unix_connection(lambda: Link(self._linked), str(self._home))
            except OSError:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, longest_s)
                continue
            wait_s = _CONNECT_EVERY_S[0]
            await self._lost.wait()

    async def _listen(self, hello: frames.Hello) -> None:
        """Let clients in, unless they are."""
        if self._http is None and self._http_port is not None and hello.serves_http:
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
        self.send(Kind.LISTENS)

    def _prefer_newest(self, port: socket.socket) -> None:
        if self._config.listen.reuse_port:
            prefer_newest(port.getsockname()[1])

    async def _tell_counts(self) -> None:
        """For ever: have the home know how the connections are."""
        while True:
            await asyncio.sleep(_COUNT_EVERY_S)
            new = Counter(self.bounds.ended)
            new.subtract(self._counted)
            self._counted.update(new)
            counts = frames.Counts(
                connections={str(protocol): count for protocol, count in self.bounds.connections.items()},
                ended=[(protocol, limit, amount) for (protocol, limit), amount in new.items() if amount],
                unread_bytes=self.bounds.unread_bytes,
            )
            self.send(Kind.COUNTS, payload=frames.encode(counts))

    async def _look_at_files(self) -> None:
        """For ever: take up tokens and keys that have changed in their files."""
        watched = WatchedFiles(credential_files(self._config))
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                if watched.changed():
                    watched = WatchedFiles(credential_files(self._config))
                    self._gate.replace(self._config)
            except Exception as error:  # the rules that were in force stay
                log.error("credentials were not read again: %s", error)

    def _reload(self, read_again: Callable[[], ServeConfig]) -> None:
        """Take up what concerns clients' connections; whether the rest can be, the home says."""
        try:
            config = diff(self._config, read_again()).effective
            self._gate.follow(Gate(config))
            self._config = config
            self.in_force.settings = settings_of(config)
            logging.getLogger().setLevel(config.log.level.upper())
        except Exception as error:  # the next one may be better
            log.error("the configuration was not taken up by a front: %s", error)

    async def _retire(self, retire: frames.Retire) -> None:
        await self._grpc.retire(retire.cut_s)
        self.send(Kind.RETIRED)

    async def _retire_http(self, retire: frames.Retire) -> None:
        now = asyncio.get_running_loop().time()
        if self._http:
            await self._http.drain(now + retire.cut_s, now + retire.serve_s)

    async def _leave(self) -> None:
        """End alone: have the clients connect to other fronts, and what is under way be answered."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._config.drain_s
        self._grpc.close_port()
        http = self._spawn(self._retire_http(frames.Retire(self._config.drain_s, 0.0)))
        await self._grpc.retire(self._config.drain_s)
        while self._under_way and loop.time() < until:
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
            faults.report("a front", error)
            with contextlib.suppress(RuntimeError):
                self._stop.set()
