"""Servers in an event loop of their own thread, and clients that write HTTP/2 by hand."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import ngh2
import pytest
import uvloop
from ngh2.events import ConnectionClosed, DataReceived, Event, ResponseReceived, TrailersReceived

from tests.proxy.fixtures.behind_frontend import BehindFrontend
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.settings import SettingsHolder, settings_of
from tidegate_proxy.frontends.shard import GrpcOfFrontends, ShardServices
from tidegate_proxy.transport import Http2Server, RpcCall, RpcServer
from tidegate_proxy.transport.client_bounds import ClientBounds

T = TypeVar("T")
ECHO = "/test.Service/Echo"


class LoopThread:
    """An event loop that runs in a thread of its own."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def call(self, work: Callable[[], T]) -> T:
        """The result of a function in the loop."""

        async def called() -> T:
            return work()

        return self.run(called())

    def close(self) -> None:
        """End it."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(30)
        self.loop.close()


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    """Where servers and channels live."""
    thread = LoopThread()
    yield thread
    thread.close()


@dataclass
class Served:
    """A server that listens."""

    server: RpcServer
    port: int
    bounds: ClientBounds
    in_force: SettingsHolder
    """What its bounds are."""

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.port}"


class Serve(Protocol):
    """Starts servers."""

    def __call__(self, accept: Callable[[RpcCall], None], **limits: float) -> Served:
        """One that gives its calls to `accept`; `limits` are the configuration's."""
        ...


@pytest.fixture
def has_frontend() -> bool:
    """Whether clients are connected to a frontend."""
    return False


def new_server(config: ServeConfig, accept: Callable[[RpcCall], None], bounds: ClientBounds) -> Http2Server:
    """Make a server, in the event loop."""
    return Http2Server(accept, config.limits, bounds, reuse_port=config.listen.reuse_port)


def config_of(**limits: float) -> ServeConfig:
    """A configuration with these limits, also where they are below what an operator may ask for."""
    config = ServeConfig.model_validate({"tritons": ("127.0.0.1:1",), "listen": "127.0.0.1:0"})
    return config.model_copy(update={"limits": config.limits.model_copy(update=limits)})


@pytest.fixture
def serve(loop: LoopThread, has_frontend: bool) -> Iterator[Serve]:
    """`serve(accept, limits)`: a server, stopped in the end."""
    servers: list[RpcServer] = []
    frontends: list[BehindFrontend] = []

    async def behind_a_frontend(config: ServeConfig, accept: Callable[[RpcCall], None]) -> Served:
        behind_frontend = BehindFrontend(config)
        frontends.append(behind_frontend)
        server = GrpcOfFrontends(behind_frontend.shard)
        servers.append(server)
        await behind_frontend.shard.open(
            ShardServices(accept, bounds=ClientBounds(SettingsHolder(settings_of(config))))
        )
        return Served(
            server, behind_frontend.shard.grpc_port, behind_frontend.frontend.bounds, behind_frontend.frontend.in_force
        )

    def start(accept: Callable[[RpcCall], None], **limits: float) -> Served:
        config = config_of(**limits)
        if has_frontend:
            return loop.run(behind_a_frontend(config, accept))
        in_force = SettingsHolder(settings_of(config))
        bounds = ClientBounds(in_force)
        server = loop.call(lambda: new_server(config, accept, bounds))
        servers.append(server)
        return Served(server, loop.run(server.listen("127.0.0.1:0")), bounds, in_force)

    yield start
    for server in servers:
        loop.run(server.stop(0))
    for behind_frontend in frontends:
        loop.run(behind_frontend.close())


def echo(call: RpcCall) -> None:
    """Answer with what was sent."""
    call.receive(lambda message: call.answer(message or b""))


class RawClient:
    """Writes what no gRPC library would write."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.http2 = ngh2.Connection(ngh2.Role.CLIENT, ngh2.Configuration(peer_max_concurrent_streams=1 << 31 - 1))
        self.http2.initiate_connection()
        self.seen: list[Event] = []
        self.ended = False

    def begin(
        self, headers: Sequence[tuple[bytes, bytes]] = (), path: bytes = ECHO.encode(), *, end_stream: bool = False
    ) -> int:
        """A call's headers; its stream."""
        return self.http2.send_request(
            [
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", path),
                (b":authority", b"test"),
                (b"content-type", b"application/grpc"),
                (b"te", b"trailers"),
                *headers,
            ],
            end_stream=end_stream,
        )

    def send(self) -> None:
        """Send what was written."""
        while data := self.http2.data_to_send():
            self.socket.sendall(data)

    def until(self, satisfied: Callable[["RawClient"], bool]) -> "RawClient":
        """Read until something was seen, or the connection ends."""
        self.send()
        while not satisfied(self) and not self.ended:
            data = self.socket.recv(1 << 16)
            if not data:
                self.ended = True
                break
            self.http2.receive_data(data)
            self.seen += self.http2.events()
            self.ended = self.ended or any(isinstance(event, ConnectionClosed) for event in self.seen)
            self.send()
        return self

    def status(self, stream_id: int) -> dict[bytes, bytes]:
        """The headers and trailers that a stream got, once its status is there."""

        def ended(client: "RawClient") -> bool:
            headers = client.headers(stream_id)
            return b"grpc-status" in headers or headers.get(b":status", b"200") != b"200"

        return self.until(ended).headers(stream_id)

    def headers(self, stream_id: int) -> dict[bytes, bytes]:
        """The headers and trailers that a stream got so far."""
        return {
            name: value
            for event in self.seen
            if isinstance(event, ResponseReceived | TrailersReceived) and event.stream_id == stream_id
            for name, value in event.headers
        }

    def data(self, stream_id: int) -> bytes:
        """What a stream got."""
        return b"".join(
            event.data for event in self.seen if isinstance(event, DataReceived) and event.stream_id == stream_id
        )

    def close(self) -> None:
        """Leave."""
        self.socket.close()


@pytest.fixture
def connect() -> Iterator[Callable[[Served], RawClient]]:
    """`connect(served)`: a client that writes HTTP/2 by hand."""
    clients: list[RawClient] = []

    def made(served: Served) -> RawClient:
        clients.append(RawClient(served.port))
        return clients[-1]

    yield made
    for client in clients:
        client.close()
